"""Files that are whole or absent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tpsl.files import write_atomically


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    write_atomically(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}


def test_a_kill_while_a_file_is_replaced_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    child = os.fork()
    if child == 0:  # replaces the file until it is killed
        while True:
            for content in (b"new" * 100_000, b"old"):
                write_atomically(path, content)
    try:
        seen = {path.read_bytes() for _ in range(300)}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert seen | {path.read_bytes()} <= {b"old", b"new" * 100_000}
