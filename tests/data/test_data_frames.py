"""Arrays and data frames become the same columns, whichever library made them."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tpsl.data.data_frames import is_frame, read_block
from tpsl.tables import DataError

FRAME = pd.DataFrame(
    {
        "age": [31.0, np.nan, 58.0],
        "late": [True, False, True],
        "city": ["Ulm", None, "Bonn"],
        "size": pd.Categorical([10, 20, 10]),
        "count": pd.Series([1, 2, 3], [7, 8, 9], dtype=object),
        "empty": [None, None, None],
    },
    index=[7, 8, 9],
)


def test_text_and_categories_are_categories_and_the_rest_are_numbers() -> None:
    block = read_block("X", FRAME)
    assert block.names == ("age", "late", "city", "size", "count", "empty")
    assert block.categorical == (False, False, True, True, False, False)
    np.testing.assert_array_equal(block.columns[0], [31.0, np.nan, 58.0])
    assert block.columns[1].tolist() == [1.0, 0.0, 1.0]
    assert block.columns[2].to_pylist() == ["Ulm", None, "Bonn"]
    assert block.columns[3].to_pylist() == ["10", "20", "10"]
    assert block.columns[4].tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(block.columns[5]).all()


def test_a_frame_of_another_library_is_read_alike() -> None:
    arrow = read_block("X", pa.Table.from_pandas(FRAME, preserve_index=False))
    pandas = read_block("X", FRAME)
    assert (arrow.names, arrow.categorical, arrow.rows) == (pandas.names, pandas.categorical, 3)
    for one, other in zip(arrow.columns, pandas.columns, strict=True):
        assert pa.array(one).to_pylist() == pa.array(other).to_pylist() or np.array_equal(one, other, equal_nan=True)


def test_later_records_are_read_as_the_first_were() -> None:
    later = pd.DataFrame({"age": ["42"], "late": [1], "city": [5], "size": [10], "count": [2.5], "empty": [0]})
    block = read_block("X", later, read_block("X", FRAME).categorical)
    assert block.categorical == (False, False, True, True, False, False)
    assert block.columns[0].tolist() == [42.0]
    assert block.columns[3].to_pylist() == ["10"]


def test_a_table_of_some_columns() -> None:
    block = read_block("X", FRAME)
    table = block.table([block.names.index("city")], pa.nulls(3, pa.string()))
    assert list(table.categorical) == ["city"] and not table.numeric


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (pd.DataFrame({"when": pd.to_datetime(["2013-01-01"])}), "column 'when' is of type timestamp"),
        (pd.DataFrame({"big": [1e39]}), "column 'big', row 1: the number 1e.39 is too large"),
        (pd.DataFrame({"mixed": ["a", {}]}), "the data frame cannot be read"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "the data frame cannot be read .Duplicate column names"),
    ],
)
def test_what_is_neither_a_number_nor_a_category_is_named(frame: pd.DataFrame, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as raised:
        read_block("X", frame)
    assert "\n" not in str(raised.value)


def test_an_array_cannot_stand_for_categories() -> None:
    with pytest.raises(DataError, match=r"X has categories .x1., so it must be a data frame"):
        read_block("X", np.zeros((2, 2)), [False, True])


def test_a_series_is_no_frame() -> None:
    assert is_frame(FRAME)
    assert not is_frame(FRAME["age"])
    assert not is_frame(np.zeros((2, 2)))
