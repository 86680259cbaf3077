"""What fits without a vault have released adds up, whoever notes it, and stays small."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tpsl.vault import VaultError
from tpsl.vault.fits import FILE, EarlierFits, add_fit, take_back

RECORDS = [f"record {number}".encode() for number in range(50)]


def test_the_record_with_the_largest_epsilon_counts(tmp_path: Path) -> None:
    assert add_fit(tmp_path, RECORDS, 1.0) == EarlierFits(0, 0.0)
    assert add_fit(tmp_path, RECORDS[:10], 0.5) == EarlierFits(1, 1.0)
    assert add_fit(tmp_path, RECORDS[5:], 2.0) == EarlierFits(2, 1.5)
    assert add_fit(tmp_path, [b"somebody else"], 4.0) == EarlierFits(0, 0.0)
    assert add_fit(tmp_path, [*RECORDS[20:30], b"new"], 1.0) == EarlierFits(2, 3.0)


def test_what_is_taken_back_was_never_there(tmp_path: Path) -> None:
    add_fit(tmp_path, RECORDS, 1.0)
    add_fit(tmp_path, [*RECORDS, b"new"], 2.0)
    take_back(tmp_path, [*RECORDS, b"new"], 2.0)
    assert add_fit(tmp_path, RECORDS, 1.0) == EarlierFits(1, 1.0)
    assert add_fit(tmp_path, [b"new"], 1.0) == EarlierFits(0, 0.0)


def note_ten_fits(place: Path) -> None:
    for _ in range(10):
        add_fit(place, RECORDS, 0.125)


def test_processes_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=note_ten_fits, args=(tmp_path,)) for _ in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0] * 4
    assert add_fit(tmp_path, RECORDS, 1.0) == EarlierFits(40, 5.0)


def test_it_stays_small_and_recognises_a_part_of_many_records(tmp_path: Path) -> None:
    many = [f"record {number}".encode() for number in range(100_000)]
    add_fit(tmp_path, many, 1.0)
    assert (tmp_path / FILE).stat().st_size < 400_000
    assert add_fit(tmp_path, many[60_000:], 1.0) == EarlierFits(1, 1.0)


def test_neither_records_nor_plain_digests_are_in_the_file(tmp_path: Path) -> None:
    for place in (tmp_path / "one", tmp_path / "two"):
        add_fit(place, [b"a label"], 1.0)
    one, two = ((tmp_path / place / FILE).read_bytes() for place in ("one", "two"))
    assert b"a label" not in one
    assert one != two, "the digests have keys of their own"


def test_a_file_that_is_no_record_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database" * 100)
    with pytest.raises(VaultError, match=f"{FILE}: cannot be written \\(file is not a database\\)"):
        add_fit(tmp_path, RECORDS, 1.0)
