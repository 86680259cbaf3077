"""What columns seem to be, from the first records of a file."""

import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.cli import guessing
from tpsl.cli.guessing import guess_columns, looks_like_id, sample_of

ROWS = 60


def column(path: Path, values: list[Any], name: str = "x", delimiter: str = ",") -> guessing.ColumnGuess:
    lines = (f"{number}{delimiter}{value}" for number, value in enumerate(values))
    path.write_text("\n".join([f"id{delimiter}{name}", *lines, ""]))
    return guess_columns(sample_of(path))[name]


@pytest.mark.parametrize(
    ("values", "kind", "missing", "absent"),
    [
        (["1.5", "-2", "1e3"] * 20, "number", 0, ()),
        (["1", "NA", "", "7"] * 15, "number", 30, ("NA", "")),
        (["1"] * 58 + ["2", "unknown"], "number", 1, ("unknown",)),
        (["red", "green", "?"] * 20, "category", 20, ("?",)),
        (["01067", "80331", "04109"] * 20, "category", 0, ()),
        (["2024-02-29", "2023-11-01T10:00:00", "-"] * 20, "date", 20, ("-",)),
        (["2024-02-29T10:00:00Z", "2024-03-01T10:00:00Z"] * 30, "date", 0, ()),
        (["1", "2", "3", "x", "y", "z", "u"] * 10, "category", 0, ()),
    ],
)
def test_a_column_is_what_nearly_all_of_its_values_are(
    tmp_path: Path, values: list[str], kind: str, missing: int, absent: tuple[str, ...]
) -> None:
    found = column(tmp_path / "t.csv", values)
    assert (found.kind, found.missing, found.absent) == (kind, missing, absent)


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("x", [""] * ROWS, "no values"),
        ("x", ["CHF"] * ROWS, "one value only"),
        ("x", [f"Person {number}" for number in range(ROWS)], "hardly repeats, as ids do"),
        ("x", ["12%", "7%"] * 30, "numbers with other signs, as 12%"),
        ("x", ['"$1,200.50"', "$90", "CHF 5"] * 20, "numbers with other signs, as $1,200.50"),
        ("accountNo", list(range(100, 100 + ROWS)), "hardly repeats, as ids do"),
    ],
)
def test_a_column_that_teaches_nothing_is_left_out_with_the_reason(
    tmp_path: Path, name: str, values: list[Any], reason: str
) -> None:
    found = column(tmp_path / "t.csv", values, name)
    assert found.kind is None
    assert found.reason == reason


def test_different_numbers_in_every_record_are_numbers_unless_they_are_called_as_ids_are(tmp_path: Path) -> None:
    assert column(tmp_path / "t.csv", list(range(ROWS)), "amount").kind == "number"
    assert column(tmp_path / "t.csv", [5, 7] * 30, "branch_no").kind == "category"
    assert looks_like_id("Customer ID")
    assert looks_like_id("clientNo")
    assert not looks_like_id("paid")


@pytest.mark.parametrize(
    ("dates", "orders"),
    [
        (["31.12.2023", "1.2.2024"], ("day",)),
        (["12/31/2023", "2/1/2024 10:30"], ("month",)),
        (["03/04/2024", "05/06/2024"], ("day", "month")),
        (["2024-01-02", "2024-02-01"], ("year",)),
        (["31.12.23", "1.2.70"], ("day",)),
        (["12/31/99", "2/1/24 10:30"], ("month",)),
    ],
)
def test_dates_are_recognised_in_the_orders_in_which_all_can_be_read(
    tmp_path: Path, dates: list[str], orders: tuple[str, ...]
) -> None:
    found = column(tmp_path / "t.csv", dates * 30)
    assert (found.kind, found.date_orders) == ("date", orders)


def test_numbers_with_a_decimal_comma_are_numbers_where_semicolons_separate(tmp_path: Path) -> None:
    assert column(tmp_path / "t.csv", ["1,5", "2,25"] * 30, delimiter=";").kind == "number"
    prices = [f"{number}.250,75" for number in range(1, 59)] + ["12,5", "unknown"]
    found = column(tmp_path / "t.csv", prices, delimiter=";")
    assert (found.kind, found.absent) == ("number", ("unknown",))


def test_types_of_a_parquet_file_are_taken_as_they_are(tmp_path: Path) -> None:
    moments = [datetime(2024, 1, 1), datetime(2024, 1, 2)] * 30
    columns = {
        "customer_id": list(range(ROWS)),
        "branch_id": [5, 7] * 30,
        "amount": [1.5, None] * 30,
        "paid": [True, False] * 30,
        "opened": pa.array(moments),
        "colour": pa.array(["a", "b"] * 30).dictionary_encode(),
        "several": [[1], [2]] * 30,
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = guess_columns(sample_of(tmp_path / "t.parquet"))
    assert {name: guess.kind for name, guess in found.items()} == {
        "customer_id": None,
        "branch_id": "category",
        "amount": "number",
        "paid": "number",
        "opened": "date",
        "colour": "category",
        "several": None,
    }
    assert found["amount"].missing == 30
    assert found["several"].reason.startswith("is of type list")


def test_only_the_first_records_of_a_large_table_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guessing, "SAMPLE_ROWS", 10)
    path = tmp_path / "t.csv"
    picks = random.Random(1).choices("ab", k=200_000)
    path.write_text("id,x\n" + "".join(f"{number:030},{pick}\n" for number, pick in enumerate(picks)))
    found = sample_of(path)
    assert 10 <= found.rows < 200_000
    assert not found.is_whole
    path.write_text("id,x\n" + "1,a\n" * 500)
    assert (sample_of(path).rows, sample_of(path).is_whole) == (500, True)


def test_columns_without_a_name_of_their_own_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",id,a,a\n0,x,1,2\n1,y,3,4\n")
    assert list(sample_of(tmp_path / "t.csv").columns) == ["id"]
