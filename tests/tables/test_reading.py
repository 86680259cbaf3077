"""What a file has, before any of it is read."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.tables import DataError
from tpsl.tables.reading import column_names, dialect_of


@pytest.mark.parametrize(
    ("header", "delimiter"),
    [
        ("id,size", ","),
        ("id;size", ";"),
        ("id\tsize", "\t"),
        ("id|size", "|"),
        ("id", ","),
        ("", ","),
        ('"id, of a customer";size;"a,b,c,d"', ";"),
        ("id,sizes;of;all,colour", ","),
    ],
)
def test_what_separates_values_is_what_makes_the_most_columns(tmp_path: Path, header: str, delimiter: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,1,1,1,1\n")
    assert dialect_of(tmp_path / "a.csv").delimiter == delimiter


def test_a_file_that_cannot_be_read_is_plain_until_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(b"id;size\n1;2\n")
    for path in [*tmp_path.iterdir(), tmp_path / "nowhere.csv"]:
        assert dialect_of(path).delimiter == ","


def test_the_names_of_columns_are_found_in_every_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeffid,size\n1,2\n")
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(b"id\tsize\n1\t2\n"))
    pq.write_table(pa.table({"id": [1], "size": [2]}), tmp_path / "c.parquet")
    for path in tmp_path.iterdir():
        assert column_names(path, dialect_of(path)) == ["id", "size"]
    with pytest.raises(DataError, match=r"none\.csv: there is no such file"):
        column_names(tmp_path / "none.csv")
    (tmp_path / "bad.parquet").write_text("no table")
    with pytest.raises(DataError, match=r"bad\.parquet: cannot be read, it is damaged"):
        column_names(tmp_path / "bad.parquet")
