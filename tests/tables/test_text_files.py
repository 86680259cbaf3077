import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tpsl.tables import reading


def test_progress_counts_the_bytes_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 2000)
    path = tmp_path / "text.csv"
    path.write_bytes(b"abcdefgh\n" * 1000)
    told: list[tuple[str, int, int]] = []
    blocks = list(
        reading.read_blocks(path, ["abcdefgh"], progress=lambda done, total, what: told.append((what, done, total)))
    )
    assert [what for what, _, _ in told] == ["reading text.csv"] * len(blocks)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1][1:] == (9000, 9000)
    assert len(blocks) > 3
    assert [block.first for block in blocks] == list(np.cumsum([1, *(block.rows for block in blocks[:-1])]))


GIVEN_UP = """
import sys
from pathlib import Path
from tpsl.tables import DataError
from tpsl.tables.reading import dialect_of, read_blocks
path = Path(sys.argv[1])
try:
    for _ in read_blocks(path, ["id", "x"], dialect_of(path)):
        pass
except DataError as error:
    sys.exit(str(error))
"""


def test_a_program_that_gives_up_a_large_table_ends(tmp_path: Path) -> None:
    rows = [f"{row},{row}" for row in range(500_000)]
    rows[500] += ",1,2"
    (tmp_path / "a.csv").write_text("\n".join(["id,x", *rows]))
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", GIVEN_UP, tmp_path / "a.csv"], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "row 501: 4 columns instead of 2" in done.stderr
