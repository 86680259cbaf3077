from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.alignment import AlignmentError
from tpsl.alignment.working_folder import RowFile, WorkingFolder, random_order
from tpsl.net.failures import BadMessage

RECORDS = [{"id": str(number)} for number in range(4)]


def begun(folder: Path, terms: Any, table: Any) -> WorkingFolder:
    working = WorkingFolder(folder, terms)
    working.begin(table)
    return working


def test_secrets_are_drawn_once_and_fresh_for_each_alignment(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms, table = make_terms(), make_table(RECORDS)
    first = begun(tmp_path, terms, table)
    again = begun(tmp_path, terms, table)
    before = first.state
    assert again.state == before
    assert len({before.scalar, before.identity, before.salt}) == 3
    for file in first.path.iterdir():
        assert file.stat().st_mode & 0o077 == 0
    first.end()
    assert not first.path.exists() and not first.is_begun
    anew = begun(tmp_path, terms, table)
    assert anew.state.scalar != before.scalar and anew.state.identity != before.identity


def test_an_unfinished_alignment_of_something_else_is_refused(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    begun(tmp_path, make_terms(), make_table(RECORDS))
    for terms, records in ((make_terms(mode="both"), RECORDS), (make_terms(), RECORDS[:3])):
        with pytest.raises(AlignmentError, match="an unfinished alignment of other keys or on other terms; remove it"):
            begun(tmp_path, terms, make_table(records))


def test_two_processes_do_not_align_in_one_folder(tmp_path: Path, make_terms: Any) -> None:
    with (
        WorkingFolder(tmp_path, make_terms()).held(),
        pytest.raises(AlignmentError, match="another process is aligning in this folder"),
        WorkingFolder(tmp_path, make_terms()).held(),
    ):
        pass


def test_what_a_peer_has_announced_cannot_change(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms, table = make_terms(), make_table(RECORDS)
    begun(tmp_path, terms, table).note_announced("party0", b"name", (7,))
    again = begun(tmp_path, terms, table)
    again.note_announced("party0", b"name", (7,))
    for other in ((b"name", (8,)), (b"eman", (7,))):
        with pytest.raises(BadMessage, match="feature party 'party0' has begun another alignment"):
            again.note_announced("party0", *other)


def test_an_order_is_drawn_once(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms, table = make_terms(), make_table(RECORDS)
    working = begun(tmp_path, terms, table)
    working.note_records({"label": 200, "party0": 4})
    assert sorted(working.order_of("label")) == list(range(200))
    assert begun(tmp_path, terms, table).order_of("label").tolist() == working.order_of("label").tolist()


def test_an_order_is_a_permutation_that_differs_each_time() -> None:
    one, two = random_order(1000), random_order(1000)
    assert sorted(one) == sorted(two) == list(range(1000))
    assert one.tolist() != two.tolist()


@pytest.fixture
def rows() -> np.ndarray:
    return np.arange(35, dtype=np.uint8).reshape(7, 5)


def test_a_list_grows_batch_by_batch_and_is_there_for_another_process(tmp_path: Path, rows: np.ndarray) -> None:
    path = tmp_path / "list"
    growing = RowFile(path, 5, 7, batch=3)
    assert (growing.done, growing.read().shape) == (0, (0, 5))
    for start in (0, 3, 6):
        growing.append(rows[start : start + 3])
        again = RowFile(path, 5, 7, batch=3)
        assert again.done == min(start + 3, 7)
        assert again.missing == range(start // 3 + 1, 3)
        np.testing.assert_array_equal(again.read(), rows[: again.done])
    assert growing.done == growing.rows and not growing.missing
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
