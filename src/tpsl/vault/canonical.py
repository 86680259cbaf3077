"""One spelling for every record id, unit and label, whatever type they arrive in.

`tpsl.tables.columns` says what a value means, as for training; here columns of Python, NumPy and pandas become columns
of Arrow first. An id is text: the integer 123 and the text "123" of a CSV file are the same record, "007" and "7" are
not. What cannot be read is a `VaultError` that names source, row and value.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.tables import ArrowArray, DataError
from tpsl.tables.columns import Place, class_numbers, first_true, record_ids
from tpsl.vault.errors import VaultError
from tpsl.vault.texts import Texts

INPUT = "the input"
Given: TypeAlias = Any
"""A column as a caller has it: a list, a NumPy array, a pandas or an Arrow column, which have no type in common."""
_ROWS = 1 << 16


@contextmanager
def as_vault_error() -> Iterator[None]:
    """Raise what is wrong with data as a `VaultError`."""
    try:
        yield
    except DataError as error:
        raise VaultError(str(error)) from error


def ids_as_text(ids: Given, *, what: str = "id", place: Place | None = None) -> Texts:
    """The canonical texts of ids or units (array, list, pandas or Arrow column), in order.

    Raises a `VaultError` for a missing, empty or long one, one that has a zero character or is no valid Unicode, and
    for types that have no unambiguous spelling (floats, booleans, bytes).
    """
    place = place or Place(INPUT, what)
    with as_vault_error():
        column = _arrow(ids)
        if isinstance(column, list):
            column = _spelled(column, what, place)
        texts = record_ids(column, place, what)
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid as error:
            raise place.wrong_type(column.type, "and is not valid Unicode") from error
        found = Texts.of(texts)
        if not found.are_sound():
            # The zero character separates ids in the ledger's digests, so it may not occur inside one.
            at = first_true(pc.match_substring(texts, "\0"))
            raise place.fault(at, f"the {what} {texts[at].as_py()!r} contains a zero character")
        return found


def labels_as_integers(labels: Given, class_values: tuple[str, ...], *, place: Place | None = None) -> npt.NDArray[Any]:
    """The class of each label, its position in `class_values` (`tpsl.tables.columns.class_numbers`)."""
    column = _arrow(labels)
    if isinstance(column, list):
        column = pa.array([None if value is None else str(value) for value in column], pa.string())
    with as_vault_error():
        return class_numbers(column, place or Place(INPUT, "label"), class_values)


@lru_cache(4)
def names_of_classes(classes: int) -> tuple[str, ...]:
    """The class values where nobody has named any: 0 .. classes - 1."""
    return tuple(map(str, range(classes)))


class GivenIds:
    """Ids or units as they were given (array, list, pandas or Arrow column), which become texts part by part."""

    def __init__(self, ids: Given, what: str = "id", source: str = "the ids asked for") -> None:
        self._ids, self._what, self._source = ids, what, source

    def __len__(self) -> int:
        return len(self._ids)

    def part(self, start: int, stop: int) -> Texts:
        """Those from one row to before another."""
        place = Place(self._source, self._what, start + 1)
        return ids_as_text(self._ids[start:stop], what=self._what, place=place)

    def where(self, mask: npt.NDArray[np.bool_]) -> Texts:
        """Those that a mask chooses."""
        starts = range(0, len(self), _ROWS)
        return Texts.joined(self.part(start, start + _ROWS).take(mask[start : start + _ROWS]) for start in starts)


def _arrow(values: Given) -> ArrowArray:
    """`values` as one Arrow array, or as a list where its elements have no common type."""
    if isinstance(values, str):
        raise VaultError(f"a column of values is needed, not the single text {values!r}")
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise VaultError(f"a one-dimensional column is needed, not an array of shape {values.shape}")
    if isinstance(values, np.ndarray) and values.dtype.kind == "U" and _has_zero_inside(values):
        return values.tolist()
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        try:
            values = pa.array(values, from_pandas=True)
        except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
            return list(values)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values.cast(pa.string()) if pa.types.is_null(values.type) else values


def _has_zero_inside(texts: npt.NDArray[np.str_]) -> bool:
    """Whether a text goes on after a zero character, where Arrow would cut it."""
    if not texts.nbytes:
        return False
    characters = np.ascontiguousarray(texts).view(np.uint32).reshape(len(texts), -1)
    return bool(((characters[:, :-1] == 0) & (characters[:, 1:] != 0)).any())


def _spelled(values: list[Any], what: str, place: Place) -> ArrowArray:
    """Texts and integers of one column, as text."""
    for at, value in enumerate(values):
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            values[at] = str(int(value))
        elif not (value is None or isinstance(value, str)):
            raise place.fault(at, f"the {what} {value!r} is neither a text nor an integer")
        elif value is not None and not _is_unicode(value):
            raise place.fault(at, f"the {what} {value!r} is not valid Unicode")
    return pa.array(values, pa.string())


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
