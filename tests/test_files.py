"""Files that are whole or absent."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from tpsl.files import DiskFull, read_yaml, remove_drafts, write_atomically


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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_does_not_fit_is_named_and_leaves_the_old_content(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "file", b"old")

    def full(file: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match="file: cannot be written, the disk is full") as raised:
        write_atomically(tmp_path / "file", b"newer")
    assert (raised.value.path, raised.value.size) == (tmp_path / "file", 5)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_another_error_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "missing" / "file", b"new")


def test_drafts_are_removed_but_not_what_a_link_leads_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".folder.new").symlink_to(elsewhere)
    (tmp_path / "run" / ".file.new").touch()
    remove_drafts(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    assert (elsewhere / "file").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        (b"a: [", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"!!python/name:os", "is not YAML"),
    ],
)
def test_yaml_that_cannot_be_read_is_the_callers_error_in_one_line(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    class Complaint(ValueError):
        pass

    path = tmp_path / "file.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Complaint) as raised:
        read_yaml(path, Complaint)
    assert str(raised.value).startswith(f"{path}: {sentence} (")
    assert "\n" not in str(raised.value)


def test_yaml_is_read_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("a: {b: [1, ε]}\n", encoding="utf-8")
    assert read_yaml(tmp_path / "file.yaml", ValueError) == {"a": {"b": [1, "ε"]}}
