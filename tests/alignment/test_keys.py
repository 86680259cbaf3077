"""Keys: each rule makes the spellings of one key equal, and what cannot be a key is left out and counted."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.alignment.conftest import key_list

from tpsl.alignment.keys import normalised, read_keys
from tpsl.data.config import AlignmentKey, TableFile

MISSING = [None]


def rule(name: Any, **options: Any) -> AlignmentKey:
    return AlignmentKey(name=name, rule=name, **options)


@pytest.mark.parametrize(
    ("key", "spellings", "written"),
    [
        (rule("exact"), [" 7", "7"], [" 7", "7"]),
        (rule("id"), [" 007\u00a0", "e\u0301t\u00e9", "  "], ["007", "\u00e9t\u00e9", None]),
        (rule("email"), [" Eva@Example.ORG\t", "\u00c9va@example.org"], ["eva@example.org", "\u00e9va@example.org"]),
        (
            rule("email"),
            ["eva", "@example.org", "eva@", "e@v@a", "e va@example.org", "e\u00a0va@example.org"],
            6 * MISSING,
        ),
        (
            rule("phone", country=49),
            ["+49 (0)151 123-4567", "0151/1234567", "(0151) 123.4567", "0049 151 1234567", "+49\u00a0151\u20111234567"],
            5 * ["+491511234567"],
        ),
        (rule("phone", country=1), ["(415) 555-2671", "+44 20 7946 0958"], ["+14155552671", "+442079460958"]),
        (rule("phone"), ["+44 20 7946 0958", "0044 20 79460958", "020 7946 0958"], [*2 * ["+442079460958"], None]),
        (rule("phone", country=49), ["+0151123456", "+49 1", "+49151 ext 5", "+1234567890123456", ""], 5 * MISSING),
        (rule("sha256"), [" " + "AB" * 32, "ab" * 31, "xy" * 32], ["ab" * 32, None, None]),
    ],
)
def test_each_rule_writes_a_key_in_one_way(key: AlignmentKey, spellings: list[str], written: list[str | None]) -> None:
    assert normalised(pa.array(spellings), key).to_pylist() == written


def digest(name: str, value: str) -> bytes:
    return hashlib.sha256(b"tpsl key 1\0" + name.encode() + b"\0" + value.encode()).digest()


def test_keys_of_a_file_are_digests_without_missing_and_repeated_ones(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("mail,phone,colour\nA@x.org,0151 1234567,red\nb@x.org,,red\na@x.org ,0151-1234567,blue\n-,no,red\n")
    file = TableFile(path=path, categorical=("colour",), missing=("", "-"), keys={"email": "mail", "phone": "phone"})
    found = read_keys(file, (rule("email"), rule("phone", country=49)))
    assert found.rows.tolist() == [0, 1]
    assert found.digests.shape == (2, 2, 32) and found.digests.dtype == np.uint8
    digests = [digest("email", "a@x.org"), digest("email", "b@x.org"), digest("phone", "+491511234567")]
    assert [found.digests[place].tobytes() for place in ((0, 0), (1, 0), (0, 1))] == digests
    assert found.missing == {"email": 1, "phone": 2} and found.repeated == {"email": 1, "phone": 1}
    assert found.source.rows == 4


def test_digests_do_not_depend_on_the_file_but_on_key_and_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"number": [7, 8], "text": ["7", " 8 "]}), tmp_path / "a.parquet")

    def digests(name: str, column: str) -> list[list[int]]:
        file = TableFile(path=tmp_path / "a.parquet", categorical=("text",), id="none", keys={name: column})
        return read_keys(file, (AlignmentKey(name=name, rule="id"),)).digests.tolist()

    assert digests("id", "number") == digests("id", "text") != digests("customer", "text")


def test_a_file_without_any_key_has_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,mail\n1,\n2,\n")
    found = read_keys(TableFile(path=tmp_path / "a.csv", keys={"email": "mail"}), (rule("email"),))
    assert len(found) == 0 and found.digests.shape == (0, 1, 32)


RECORDS = [{"email": "a"}, {}, {"phone": "1"}, {"email": "b", "phone": "2"}]


def test_a_record_has_a_row_if_it_has_any_key(make_table: Any) -> None:
    table, (email, phone) = make_table(RECORDS), (key_list(name, RECORDS) for name in ("email", "phone"))
    assert table.rows.tolist() == [0, 2, 3]
    np.testing.assert_array_equal(table.digests[[0, 2], 0], email.digests)
    np.testing.assert_array_equal(table.digests[[1, 2], 1], phone.digests)


def test_a_missing_key_is_another_random_number_each_time(make_table: Any) -> None:
    drawn = [make_table(RECORDS).digests[place].tobytes() for place in ((0, 1), (1, 0)) for _ in range(2)]
    assert len({*drawn}) == 4


def test_records_are_in_the_order_that_is_given(make_table: Any) -> None:
    table = make_table(RECORDS, np.array([3, 1, 0, 2]))
    assert table.rows.tolist() == [3, 0, 2]
    np.testing.assert_array_equal(table.digests[0, 1], key_list("phone", RECORDS).digests[1])
