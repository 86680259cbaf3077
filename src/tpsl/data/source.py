"""Records that a user brings: images, sequences, anything that the user's own network reads.

A source is an object with

    ids             a unique text or integer for each record, the same at every party;
    batch(rows)     the inputs of these records: one array or tensor, or a tuple of them, whose first dimension is that
                    of `rows`. Instead of it a source may be a map-style dataset, as PyTorch knows it: what
                    `__getitem__` gives for each row is stacked;
    times           for a chronological split: a number, date or timestamp for each record;
    labels, units   the label party's: the label of each record, and maybe whom it is about.

The label party's source needs `batch` only where it has features of its own. `rows` are positions in the source's own
order, in any order. What is given for a row must not depend on the other rows, nor change from call to call.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tpsl.data.errors import DataError
from tpsl.data.features import Features
from tpsl.data.split import Rows

Arrays = tuple[npt.NDArray[Any], ...]


class Inputs(Protocol):
    """Records that a user brings, in the canonical order: anything that gives the arrays of some rows."""

    def __len__(self) -> int: ...

    def batch(self, rows: Rows) -> Arrays:
        """Return the inputs of these rows: arrays whose first dimension is that of `rows`."""


class SourceInputs:
    """The inputs of a user's source in the canonical order; `name` is what errors call it.

    Guarantee: each batch has a row for each record asked for, numbers that are finite, and the types and shapes of the
    first one.
    """

    def __init__(self, name: str, source: Any, order: Rows) -> None:
        self._name, self._order = name, order
        self._give = _giver(name, source)
        self._kinds: list[tuple[Any, tuple[int, ...]]] | None = None
        self.batch(np.arange(min(2, len(order))))

    def __len__(self) -> int:
        return len(self._order)

    def batch(self, rows: Rows) -> Arrays:
        """Return the inputs of these rows."""
        try:
            given = self._give(self._order[rows])
            arrays = tuple(np.asarray(part) for part in (given if isinstance(given, tuple | list) else (given,)))
        except Exception as error:
            reason = " ".join(str(error).split()) or "no reason given"
            raise DataError(f"{self._name}: fails to give a batch ({type(error).__name__}: {reason})") from error
        for array in arrays:
            if array.ndim == 0 or len(array) != len(rows):
                raise DataError(f"{self._name}: gives an array of shape {array.shape} for a batch of {len(rows)} rows")
            if array.dtype.kind not in "biuf":
                raise DataError(f"{self._name}: gives {array.dtype} in a batch, and inputs must be numbers")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(f"{self._name}: gives numbers in a batch that are not finite")
        kinds = [(array.dtype, array.shape[1:]) for array in arrays]
        if self._kinds is None:
            self._kinds = kinds
        if kinds != self._kinds:
            raise DataError(f"{self._name}: gives {_words(kinds)} in a batch, and gave {_words(self._kinds)} before")
        return arrays


def table_features(inputs: Features | Inputs, wanted_by: str) -> Features:
    """Return the features of a table; inputs of a user's own are an error that names what needs a table."""
    if not isinstance(inputs, Features):
        raise DataError(f"{wanted_by} needs the features of a table, and these are inputs of a party's own")
    return inputs


def _giver(name: str, source: Any) -> Callable[[Rows], Any]:
    if callable(getattr(source, "batch", None)):
        return source.batch  # type: ignore[no-any-return]
    if hasattr(source, "__getitem__"):
        return lambda rows: _stacked([source[int(row)] for row in rows])
    raise DataError(f"{name}: has neither batch(rows) nor __getitem__")


def _stacked(items: Sequence[Any]) -> Any:
    if isinstance(items[0], tuple | list):
        return tuple(np.stack([np.asarray(part) for part in parts]) for parts in zip(*items, strict=True))
    return np.stack([np.asarray(item) for item in items])


def _words(kinds: Sequence[tuple[Any, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype} of shape {('rows', *shape)}" for dtype, shape in kinds).replace("'", "")
