from pathlib import Path
from typing import Any

import pytest

from tpsl.alignment.alignment_errors import AlignmentError
from tpsl.alignment.working_folder import WorkingFolder
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Announcement

RECORDS = [{"id": str(number)} for number in range(4)]


def begun(folder: Path, terms: Any, table: Any) -> WorkingFolder:
    working = WorkingFolder(folder, terms)
    working.begin(table)
    return working


def test_secrets_are_drawn_once_and_fresh_for_each_alignment(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms, table = make_terms(), make_table(RECORDS)
    first = begun(tmp_path, terms, table)
    again = begun(tmp_path, terms, table)
    assert (again.scalar, again.identity, again.salt) == (first.scalar, first.identity, first.salt)
    assert len({first.scalar, first.identity, first.salt}) == 3
    for file in first.path.iterdir():
        assert file.stat().st_mode & 0o077 == 0
    first.end()
    assert not first.path.exists() and not first.is_begun
    anew = begun(tmp_path, terms, table)
    assert anew.scalar != first.scalar and anew.identity != first.identity


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
    begun(tmp_path, terms, table).note_announced("party0", Announcement(b"name", (7,)))
    again = begun(tmp_path, terms, table)
    again.note_announced("party0", Announcement(b"name", (7,)))
    for other in (Announcement(b"name", (8,)), Announcement(b"eman", (7,))):
        with pytest.raises(BadMessage, match="feature party 'party0' has begun another alignment"):
            again.note_announced("party0", other)


def test_an_order_is_drawn_once(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms, table = make_terms(), make_table(RECORDS)
    working = begun(tmp_path, terms, table)
    working.note_records({"label": 200, "party0": 4})
    assert sorted(working.order_of("label")) == list(range(200))
    assert begun(tmp_path, terms, table).order_of("label").tolist() == working.order_of("label").tolist()
