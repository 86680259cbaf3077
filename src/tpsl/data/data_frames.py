"""A block of columns in memory: an array of numbers, or a data frame of numbers and categories.

Frames are read through Arrow, so those of pandas, Polars and Arrow itself are the same here. Text, and whatever the
frame calls a category, is a category; numbers and truth values are numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tpsl.data.rawtable import RawTable
from tpsl.spill import ArrowArray
from tpsl.tables import DataError
from tpsl.tables.columns import Place, is_text, numbers, texts
from tpsl.tables.reading import one_array
from tpsl.tables.spelling import Spelling

Frame: TypeAlias = Any
"""A data frame of any library, or an array: none of them is needed here."""


@dataclass(frozen=True)
class Block:
    """Columns in order: an array of numbers each (NaN: missing), or a categorical Arrow array of text."""

    names: tuple[str, ...]
    columns: tuple[ArrowArray, ...]
    rows: int

    @property
    def categorical(self) -> tuple[bool, ...]:
        """Which columns are categories."""
        return tuple(not isinstance(values, np.ndarray) for values in self.columns)

    def table(self, positions: Sequence[int], ids: ArrowArray) -> RawTable:
        """Return some of the columns as one party's table."""
        chosen = [(self.names[at], self.columns[at], self.categorical[at]) for at in positions]
        return RawTable(
            "X",
            ids,
            {name: values for name, values, is_category in chosen if is_category},
            {name: values for name, values, is_category in chosen if not is_category},
        )


def is_frame(values: object) -> bool:
    """Return whether this is a data frame, whose columns have names and types of their own."""
    return hasattr(values, "columns") and hasattr(values, "shape")


def read_block(name: str, values: Frame, categorical: Sequence[bool] | None = None) -> Block:
    """Return the columns of a data frame, or of an array of numbers as x0, x1, ...; errors name block, column and row.

    With `categorical` these columns are read as categories and the others as numbers, whatever the frame's types: so
    that records that come later are read as the first ones were.
    """
    if not is_frame(values):
        if categorical is not None and any(categorical):
            raise DataError(
                f"{name} has categories (x{categorical.index(True)}), so it must be a data frame, not an array"
            )
        categorical = [False] * values.shape[1]
        values = pa.table({f"x{at}": pa.array(values[:, at]) for at in range(values.shape[1])})
    table, columns = arrow_table(name, values), []
    for at, column in enumerate(table.column_names):
        content = table.column(at)
        content = one_array(content.cast(pa.float64()) if pa.types.is_null(content.type) else content)
        is_category = _is_category(content.type) if categorical is None else categorical[at]
        columns.append((texts if is_category else numbers)(content, Place(name, column), Spelling()))
    return Block(tuple(table.column_names), tuple(columns), table.num_rows)


def arrow_table(name: str, frame: Frame) -> ArrowArray:
    """Return a data frame of any library as a table of Arrow; errors name it."""
    try:
        if type(frame).__module__.split(".")[0] == "pandas":
            return pa.Table.from_pandas(frame, preserve_index=False)
        return pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{name}: the data frame cannot be read ({str(error).splitlines()[0]})") from error


def _is_category(kind: ArrowArray) -> bool:
    return bool(pa.types.is_dictionary(kind) or is_text(kind))
