"""One spelling for every record id, unit and label, whatever type they arrive in.

An id is text: the integer 123 and the text "123" of a CSV file are the same record, "007" and "7" are not. A label is
an integer 0..k-1; texts and floats that spell one are read, everything else is an error that names row and value.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.tables.columns import MOST_ID_BYTES, is_text
from tpsl.tables.spelling import TRUTH, label_text
from tpsl.vault.errors import VaultError
from tpsl.vault.texts import Texts


def ids_as_text(ids: Any, *, what: str = "id", first_row: int = 1, source: str = "the input") -> Texts:
    """The canonical texts of `ids` (array, list, pandas or Arrow column), in order.

    Raises `VaultError` for a missing, empty or long id, naming `source` and the row (counted from `first_row`), and for
    types that have no unambiguous spelling (floats, booleans, bytes).
    """
    column = _arrow(ids)
    if isinstance(column, list):
        spelled = [_one_text(value, what, first_row + i, source) for i, value in enumerate(column)]
        _check_texts(spelled, what, first_row, source)
        return _short(Texts.of(spelled), what, first_row, source)
    if not (pa.types.is_integer(column.type) or is_text(column.type) or pa.types.is_null(column.type)):
        raise VaultError(f"{source}: the {what} column has type {column.type}; a text or integer type is needed")
    if column.null_count:
        row = first_row + pc.index(pc.is_null(column), True).as_py()
        raise VaultError(f"{source}, row {row}: the {what} is missing")
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise VaultError(f"{source}: the {what} column is not valid Unicode") from error
    texts = Texts.of(column)
    if not texts.are_sound():
        _check_texts(column.to_pylist(), what, first_row, source)
    return _short(texts, what, first_row, source)


def _short(texts: Texts, what: str, first_row: int, source: str) -> Texts:
    """Return the texts; one of more than `MOST_ID_BYTES` is a `VaultError`."""
    if len(texts) and texts.lengths()[1] > MOST_ID_BYTES:
        lengths = (len(text.encode()) for text in texts.to_list())
        row = next(row for row, length in enumerate(lengths, first_row) if length > MOST_ID_BYTES)
        raise VaultError(f"{source}, row {row}: the {what} has more than {MOST_ID_BYTES:,} bytes")
    return texts


class GivenIds:
    """Ids or units as they were given (array, list, pandas or Arrow column), which become texts when they are needed.

    All are checked by `part`; `take` is for those that were.
    """

    def __init__(self, ids: Any, what: str = "id", source: str = "the ids asked for") -> None:
        self._ids, self._what, self._source = ids, what, source

    def __len__(self) -> int:
        return len(self._ids)

    def part(self, start: int, stop: int) -> Texts:
        """Those from one row to before another."""
        return ids_as_text(self._ids[start:stop], what=self._what, first_row=start + 1, source=self._source)

    def take(self, rows: npt.NDArray[Any]) -> Texts:
        """Those of these rows, in that order."""
        ids = self._ids
        if isinstance(ids, (pa.Array, pa.ChunkedArray)):
            return ids_as_text(ids.take(pa.array(rows)))
        if isinstance(ids, np.ndarray):
            return ids_as_text(ids[rows])
        return ids_as_text([ids[row] for row in rows.tolist()] if not hasattr(ids, "iloc") else ids.iloc[rows])


def labels_as_integers(
    labels: Any, classes: int, *, first_row: int = 1, source: str = "the input"
) -> npt.NDArray[np.int64]:
    """The labels as integers 0..classes-1, or a `VaultError` that names `source`, the row and the value.

    Integers, booleans, floats with an integral value and texts that spell one of these ("1", "1.0", "true") are read.
    """
    column = _arrow(labels)
    if isinstance(column, list):
        column = pa.array([None if v is None else str(v) for v in column], pa.string())
    if column.null_count:
        row = first_row + pc.index(pc.is_null(column), True).as_py()
        raise VaultError(f"{source}, row {row}: the label is missing")
    if is_text(column.type):
        encoded = pc.dictionary_encode(column)
        spelled = np.array([_spelled_label(text) for text in encoded.dictionary.to_pylist()] or [0.0], np.float64)
        values = spelled[encoded.indices.to_numpy(zero_copy_only=False)]
    elif pa.types.is_boolean(column.type) or pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False)
    else:
        raise VaultError(f"{source}: the label column has type {column.type}; integers 0..{classes - 1} are needed")
    if values.dtype == np.bool_:
        values = values.astype(np.int64)
    bad = ~((values >= 0) & (values < classes) & (values == np.floor(values)))
    if bad.any():
        at = int(bad.argmax())
        allowed = "0 or 1" if classes == 2 else f"one of 0..{classes - 1}"
        raise VaultError(
            f"{source}, row {first_row + at}: the label {column[at].as_py()!r} cannot be read; it must be {allowed}"
        )
    return np.asarray(values, np.int64)


def _arrow(values: Any) -> Any:
    """`values` as one Arrow array, or as a list where its elements have no common type."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        if isinstance(values, str):
            raise VaultError(f"a column of values is needed, not the single text {values!r}")
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise VaultError(f"a one-dimensional column is needed, not an array of shape {values.shape}")
        if isinstance(values, np.ndarray) and values.dtype.kind == "U" and _has_zero_inside(values):
            return values.tolist()
        try:
            values = pa.array(values, from_pandas=True)
        except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
            return list(values)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values


def _has_zero_inside(texts: npt.NDArray[np.str_]) -> bool:
    """Whether a text goes on after a zero character, where Arrow would cut it."""
    if not texts.nbytes:
        return False
    characters = np.ascontiguousarray(texts).view(np.uint32).reshape(len(texts), -1)
    return bool(((characters[:, :-1] == 0) & (characters[:, 1:] != 0)).any())


def _one_text(value: Any, what: str, row: int, source: str) -> str:
    if value is None:
        raise VaultError(f"{source}, row {row}: the {what} is missing")
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    raise VaultError(f"{source}, row {row}: the {what} {value!r} is neither a text nor an integer")


def _check_texts(texts: Sequence[str], what: str, first_row: int, source: str) -> None:
    if "" in texts:
        raise VaultError(f"{source}, row {first_row + texts.index('')}: the {what} is empty")
    joined = "".join(texts)
    if "\0" not in joined and joined.isascii():
        return
    for row, text in enumerate(texts, first_row):
        # The zero character separates ids in the ledger's digests, so it may not occur inside one.
        if "\0" in text:
            raise VaultError(f"{source}, row {row}: the {what} {text!r} contains a zero character")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise VaultError(f"{source}, row {row}: the {what} {text!r} is not valid Unicode") from None


def _spelled_label(text: str) -> float:
    """Return the number that a label is, NaN if it is none: as training reads it (`tpsl.tables.spelling`)."""
    label = label_text(text) or ""
    return TRUTH.get(label.lower(), float(label) if re.fullmatch(r"-?[0-9]+", label) else float("nan"))
