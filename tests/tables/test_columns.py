"""Tests of `tpsl.tables.columns`; whole files are read in `tests/data/test_table.py`."""

import pyarrow as pa
import pytest

from tpsl.tables.columns import Place, numbers, record_ids
from tpsl.tables.errors import DataError
from tpsl.tables.reading import Dialect


@pytest.mark.parametrize(
    ("delimiter", "texts"),
    [(";", ["-1.234.567,5", "0,25", "7", "0.125"]), (",", ["-1,234,567.5", "0.25", "7", "0.125"])],
)
def test_thousands_may_be_separated_where_a_decimal_sign_follows(delimiter: str, texts: list[str]) -> None:
    place = Place("t.csv", "size", dialect=Dialect(delimiter))
    assert numbers(pa.array(texts), place).tolist() == [-1234567.5, 0.25, 7, 0.125]


@pytest.mark.parametrize(
    ("delimiter", "texts", "advice"),
    [
        (";", ["1.234,56", "1.234"], r"beside numbers as 1\.234,56 it could be either"),
        (",", ["1,234.56", "1,234"], "numbers have a decimal point"),
        (";", ["1,5", "1.23,5"], "if it stands for a missing value"),
    ],
)
def test_a_number_that_could_be_two_is_refused(delimiter: str, texts: list[str], advice: str) -> None:
    with pytest.raises(DataError, match=rf"column 'size', row 2: '{texts[1]}' is not a number \({advice}"):
        numbers(pa.array(texts), Place("t.csv", "size", dialect=Dialect(delimiter)))
    if advice.startswith("beside"):
        assert numbers(pa.array(texts[1:]), Place("t.csv", "size", dialect=Dialect(delimiter))).tolist() == [1.234]


def test_an_id_has_at_most_1024_bytes() -> None:
    longest = "ä" * 512
    assert record_ids(pa.array(["a", longest]), Place("records.csv", "id")).to_pylist() == ["a", longest]
    with pytest.raises(DataError, match=r"records\.csv: column 'user', row 2: the unit has more than 1,024 bytes"):
        record_ids(pa.array(["a", longest + "a"]), Place("records.csv", "user"), "unit")
