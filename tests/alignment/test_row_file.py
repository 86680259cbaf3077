from pathlib import Path

import numpy as np
import pytest

from tpsl.alignment.row_file import RowFile


@pytest.fixture
def rows() -> np.ndarray:
    return np.arange(35, dtype=np.uint8).reshape(7, 5)


def test_a_list_grows_batch_by_batch_and_is_there_for_another_process(tmp_path: Path, rows: np.ndarray) -> None:
    path = tmp_path / "list"
    growing = RowFile(path, 5, 7, batch=3)
    assert (growing.done, growing.is_complete, growing.read().shape) == (0, False, (0, 5))
    for start in (0, 3, 6):
        growing.append(rows[start : start + 3])
        again = RowFile(path, 5, 7, batch=3)
        assert again.done == min(start + 3, 7)
        np.testing.assert_array_equal(again.read(), rows[: again.done])
    assert growing.is_complete
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("written", [1, 4, 5, 14])
def test_a_batch_that_was_written_in_part_is_written_again(tmp_path: Path, rows: np.ndarray, written: int) -> None:
    path = tmp_path / "list"
    RowFile(path, 5, 7, batch=3).append(rows[:3])
    with path.open("ab") as file:
        file.write(bytes([255]) * written)
    again = RowFile(path, 5, 7, batch=3)
    assert again.done == 3
    again.append(rows[3:6])
    again.append(rows[6:])
    assert path.read_bytes() == rows.tobytes()
