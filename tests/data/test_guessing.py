"""What columns seem to be, from the first records of a file: their kinds, the id, the label, the privacy unit."""

import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.data import guessing
from tpsl.data.guessing import Sample, guess_columns, guess_label, guess_unit, looks_like_id, sample_of
from tpsl.tables import DataError
from tpsl.tables.reading import PLAIN

ROWS, FEW = 60, 40


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


def sample(name: str = "t.csv", **columns: list[object]) -> Sample:
    return Sample(Path(name), PLAIN, {key: pa.array(values) for key, values in columns.items()}, FEW)


def guess_ids(*samples: Sample) -> list[str]:
    return guessing.guess_ids(samples, [guess_columns(each) for each in samples])


def test_ids_are_the_columns_that_share_their_values_whatever_they_are_called() -> None:
    people = [f"p{number}" for number in range(FEW)]
    shop = sample(row=list(range(FEW)), visitor=people, age=[30] * FEW)
    bank = sample(loan_id=[f"l{number}" for number in range(FEW)], client=people[::-1])
    assert guess_ids(shop, bank) == ["visitor", "client"]
    assert guess_ids(bank) == ["loan_id"]
    other = sample(customer=people, row=list(range(FEW)))
    assert guess_ids(shop, other, bank) == ["visitor", "customer", "client"]


def test_a_table_in_which_every_column_repeats_has_no_id() -> None:
    with pytest.raises(
        DataError,
        match=r"no column differs in every record \('customer_id' repeats an earlier value 20 times, as 'c0'\)",
    ):
        guess_ids(sample(customer_id=[f"c{number // 2}" for number in range(FEW)], x=["a"] * FEW))


@pytest.mark.parametrize(
    ("values", "classes", "sure"),
    [
        (["yes", "no"], ("no", "yes"), True),
        (["Repaid", "Defaulted"], ("Repaid", "Defaulted"), True),
        (["red", "blue"], ("blue", "red"), False),
        (["DEFAULT", "paid", "default ", "Default", "Paid"], ("paid", "default"), True),
        (["1", "0"], None, True),
        (["True", "False"], None, True),
        (["1", "2"], ("1", "2"), True),
        (["10", "9", "11", "9"], ("9", "10", "11"), True),
        (["b", "c", "a", "NA"], ("a", "b", "c"), True),
    ],
)
def test_classes_are_in_an_order_that_follows_from_what_they_are_called(
    values: list[str], classes: tuple[str, ...] | None, sure: bool
) -> None:
    for repeated in (values * (FEW // len(values)), [values[0]] * (FEW - len(values)) + values):
        found = guess_label(sample(id=list(range(len(repeated))), status=repeated), "id")
        assert (found.column, found.values, found.is_sure) == ("status", classes, sure)
        assert sum(found.counts) == sum(value != "NA" for value in repeated)


def test_the_label_is_the_column_that_is_called_like_one_or_has_two_values() -> None:
    ids, two = list(range(FEW)), [0, 1] * 20
    assert guess_label(sample(id=ids, churned=two, gender=two), "id").column == "churned"
    assert (
        guess_label(sample(id=ids, region=list("abcd") * 10, status=two, grade=[1, 2, 3, 4] * 10), "id").column
        == "status"
    )
    assert guess_label(sample(id=ids, churned=two, gender=["f", "m"] * 20), "id", "gender").values == ("f", "m")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            [number / 7 for number in range(FEW)],
            "has 40 different numbers, so it is a quantity: labels are classes",
        ),
        ([f"text {number}" for number in range(FEW)], "has 40 different texts: labels are a few classes"),
        (["no"] * FEW, "is 'no' in every record: there is nothing to learn"),
    ],
)
def test_what_cannot_be_a_label_is_refused_with_the_reason(values: list[object], sentence: str) -> None:
    table = sample(id=list(range(FEW)), outcome=values)
    with pytest.raises(DataError, match=f"no column looks like a label; 'outcome' {sentence}"):
        guess_label(table, "id")
    with pytest.raises(DataError, match=f"column 'outcome' {sentence}"):
        guess_label(table, "id", "outcome")


def test_whom_records_are_about_is_a_column_called_as_ids_are_that_repeats() -> None:
    people = [f"c{number // 2}" for number in range(2 * FEW)]
    loans = Sample(Path("t.csv"), PLAIN, {"loan": pa.array(range(2 * FEW)), "customer_id": pa.array(people)}, 2 * FEW)
    assert guess_unit(loans, "loan", "paid") == "customer_id"
    assert guess_unit(sample(loan_id=list(range(FEW)), branch_no=["1", "2"] * 20), "loan_id", "paid") is None
