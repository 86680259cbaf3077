"""Tests of `tpsl.tables.columns`; whole files are read in `tests/data/test_table.py`."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tpsl.tables import DataError
from tpsl.tables.columns import Place, class_numbers, numbers, record_ids, texts, times
from tpsl.tables.spelling import Spelling, category
from tpsl.vault import VaultError
from tpsl.vault.canonical import labels_as_integers

PLACE = Place("t.csv", "size")


@pytest.mark.parametrize(
    ("decimal", "texts"),
    [(",", ["-1.234.567,5", "0,25", "7", "0.125"]), (".", ["-1,234,567.5", "0.25", "7", "0.125"])],
)
def test_thousands_may_be_separated_where_a_decimal_sign_follows(decimal: str, texts: list[str]) -> None:
    assert numbers(pa.array(texts), PLACE, Spelling(decimal=decimal)).tolist() == [-1234567.5, 0.25, 7, 0.125]


@pytest.mark.parametrize(
    ("decimal", "texts"),
    [
        (",", ["1.234,56", "1.234"]),
        (",", ["1.234", "1.234,56"]),
        (".", ["1,234.56", "1,234"]),
        (",", ["1,5", "1.23,5"]),
    ],
)
def test_a_number_that_could_be_two_is_refused_in_one_block_and_in_two(decimal: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match=rf"column 'size', row 2: '{texts[1]}' is"):
        numbers(pa.array(texts), PLACE, Spelling(decimal=decimal))
    written = Spelling(decimal=decimal)
    assert len(numbers(pa.array(texts[:1]), PLACE, written)) == 1
    with pytest.raises(DataError, match=rf"column 'size', row 2: '{texts[1]}' is"):
        numbers(pa.array(texts[1:]), replace(PLACE, first=2), written)


def test_points_alone_are_decimal_points_where_no_row_says_otherwise() -> None:
    assert numbers(pa.array(["1.234", "7"]), PLACE, Spelling(decimal=",")).tolist() == [1.234, 7]


@pytest.mark.parametrize("other", ["2024-01-01T00:00:00Z", "1704067200"])
def test_times_of_a_column_are_all_written_alike_in_one_block_and_in_two(other: str) -> None:
    texts = ["2024-01-01", other]
    with pytest.raises(DataError, match="column 'size', row 2"):
        times(pa.array(texts), PLACE, Spelling())
    written = Spelling()
    times(pa.array(texts[:1]), PLACE, written)
    with pytest.raises(DataError, match="column 'size', row 2"):
        times(pa.array(texts[1:]), replace(PLACE, first=2), written)


@pytest.mark.parametrize("column", [["True", "false", "TRUE"], ["true", "FALSE", "true"], [True, False, True]])
def test_truth_values_are_one_category_however_they_are_written(column: list[Any]) -> None:
    assert texts(pa.array(column), PLACE, Spelling()).to_pylist() == ["true", "false", "true"]
    assert numbers(pa.array(column), PLACE, Spelling()).tolist() == [1, 0, 1]


@pytest.mark.parametrize("column", [["1", None, "2.5"], ["1.0", "", "2.5"], [1.0, float("nan"), 2.5]])
def test_whole_numbers_and_missing_values_are_the_same_category_in_text_and_numbers(column: list[Any]) -> None:
    assert texts(pa.array(column), PLACE, Spelling()).to_pylist() == ["1", None, "2.5"]


@pytest.mark.parametrize("text", ["FAL\u017fE", "-0.0", "007.0", "1" * 5000 + ".0", "-12.0", "1.00", "tRUE", " true"])
def test_a_category_is_the_same_in_a_column_and_alone(text: str) -> None:
    """ſ is an s to regular expressions that ignore case."""
    assert texts(pa.array([text]), PLACE, Spelling()).to_pylist() == [category(text, Spelling())]


def test_the_first_label_at_fault_is_named_also_where_it_is_missing() -> None:
    for labels, row in ((["no", None, "perhaps"], 2), (["no", "perhaps", None], 2), ([None, "no"], 1)):
        with pytest.raises(DataError, match=f"column 'size', row {row}: "):
            class_numbers(pa.array(labels), PLACE, ("no", "yes"))


@pytest.mark.parametrize("label", ["1", "+1", "1.0", " 1 ", "true", "TRUE", 1, 1.0, True])
def test_labels_mean_the_same_to_training_and_to_a_vault(label: Any) -> None:
    assert class_numbers(pa.array([label]), PLACE, ("0", "1")).tolist() == [1]
    assert labels_as_integers(pa.array([label]), ("0", "1")).tolist() == [1]


@pytest.mark.parametrize("label", ["1e0", "0x1", "one", 0.5])
def test_what_is_no_label_to_training_is_none_to_a_vault(label: Any) -> None:
    with pytest.raises(DataError):
        class_numbers(pa.array([label]), PLACE, ("0", "1"))
    with pytest.raises(VaultError):
        labels_as_integers(pa.array([label]), ("0", "1"))


def test_an_id_has_at_most_1024_bytes() -> None:
    longest = "ä" * 512
    assert record_ids(pa.array(["a", longest]), Place("records.csv", "id")).to_pylist() == ["a", longest]
    with pytest.raises(DataError, match=r"records\.csv: column 'user', row 2: the unit has more than 1,024 bytes"):
        record_ids(pa.array(["a", longest + "a"]), Place("records.csv", "user"), "unit")
