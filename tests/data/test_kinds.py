"""Years of two digits are read as POSIX reads them (`%y`), in whichever order a date is written."""

from datetime import datetime

import pyarrow as pa
import pytest

from tpsl.data.rawtable import KINDS
from tpsl.tables import DataError
from tpsl.tables.columns import Place
from tpsl.tables.spelling import Spelling


@pytest.mark.parametrize(
    ("kind", "written"), [("day_first_date", "%d/%m/%y"), ("month_first_date", "%m/%d/%y"), ("hour", "%y%m%d%H")]
)
def test_a_year_of_two_digits_is_one_from_1969_to_2068(kind: str, written: str) -> None:
    moments = [datetime(1969, 1, 2), datetime(1999, 12, 31), datetime(2000, 2, 29), datetime(2068, 3, 4)]
    texts = [moment.strftime(written) for moment in moments]
    assert [datetime.strptime(text, written) for text in texts] == moments
    assert KINDS[kind].read(pa.array(texts), Place("t.csv", "day"), Spelling()).to_pylist() == moments


def test_a_date_that_cannot_be_read_is_shown_as_it_is_written() -> None:
    with pytest.raises(DataError, match=r"row 2: '31\.02\.2024' cannot be read as a time"):
        KINDS["day_first_date"].read(pa.array(["1.2.2024", "31.02.2024"]), Place("t.csv", "day"), Spelling())


def test_a_short_year_between_hyphens_may_come_first_and_is_refused() -> None:
    with pytest.raises(DataError, match="'25-12-31' cannot be read as a time"):
        KINDS["day_first_date"].read(pa.array(["25-12-31"]), Place("t.csv", "day"), Spelling())
