"""Which columns seem to be the id, the label, and whom a record is about."""

from pathlib import Path

import pyarrow as pa
import pytest

from tpsl.cli import guessing
from tpsl.cli.guessing import Sample, guess_columns, guess_label, guess_unit
from tpsl.tables import DataError
from tpsl.tables.reading import PLAIN

ROWS = 40


def sample(name: str = "t.csv", **columns: list[object]) -> Sample:
    return Sample(Path(name), PLAIN, {key: pa.array(values) for key, values in columns.items()}, ROWS)


def guess_ids(*samples: Sample) -> list[str]:
    return guessing.guess_ids(samples, [guess_columns(each) for each in samples])


def test_ids_are_the_columns_that_share_their_values_whatever_they_are_called() -> None:
    people = [f"p{number}" for number in range(ROWS)]
    shop = sample(row=list(range(ROWS)), visitor=people, age=[30] * ROWS)
    bank = sample(loan_id=[f"l{number}" for number in range(ROWS)], client=people[::-1])
    assert guess_ids(shop, bank) == ["visitor", "client"]
    assert guess_ids(bank) == ["loan_id"]
    other = sample(customer=people, row=list(range(ROWS)))
    assert guess_ids(shop, other, bank) == ["visitor", "customer", "client"]


def test_a_table_in_which_every_column_repeats_has_no_id() -> None:
    with pytest.raises(
        DataError,
        match=r"no column differs in every record \('customer_id' repeats an earlier value 20 times, as 'c0'\)",
    ):
        guess_ids(sample(customer_id=[f"c{number // 2}" for number in range(ROWS)], x=["a"] * ROWS))


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
    for repeated in (values * (ROWS // len(values)), [values[0]] * (ROWS - len(values)) + values):
        found = guess_label(sample(id=list(range(len(repeated))), status=repeated), "id")
        assert (found.column, found.values, found.is_sure) == ("status", classes, sure)
        assert sum(found.counts) == sum(value != "NA" for value in repeated)


def test_the_label_is_the_column_that_is_called_like_one_or_has_two_values() -> None:
    ids, two = list(range(ROWS)), [0, 1] * 20
    assert guess_label(sample(id=ids, churned=two, gender=two), "id").column == "churned"
    assert (
        guess_label(sample(id=ids, region=list("abcd") * 10, status=two, grade=[1, 2, 3, 4] * 10), "id").column
        == "status"
    )
    assert guess_label(sample(id=ids, churned=two, gender=["f", "m"] * 20), "id", "gender").values == ("f", "m")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([number / 7 for number in range(ROWS)], "has 40 different numbers, so it is a quantity: labels are classes"),
        ([f"text {number}" for number in range(ROWS)], "has 40 different texts: labels are a few classes"),
        (["no"] * ROWS, "is 'no' in every record: there is nothing to learn"),
    ],
)
def test_what_cannot_be_a_label_is_refused_with_the_reason(values: list[object], sentence: str) -> None:
    table = sample(id=list(range(ROWS)), outcome=values)
    with pytest.raises(DataError, match=f"no column looks like a label; 'outcome' {sentence}"):
        guess_label(table, "id")
    with pytest.raises(DataError, match=f"column 'outcome' {sentence}"):
        guess_label(table, "id", "outcome")


def test_whom_records_are_about_is_a_column_called_as_ids_are_that_repeats() -> None:
    people = [f"c{number // 2}" for number in range(2 * ROWS)]
    loans = Sample(Path("t.csv"), PLAIN, {"loan": pa.array(range(2 * ROWS)), "customer_id": pa.array(people)}, 2 * ROWS)
    assert guess_unit(loans, "loan", "paid") == "customer_id"
    assert guess_unit(sample(loan_id=list(range(ROWS)), branch_no=["1", "2"] * 20), "loan_id", "paid") is None
