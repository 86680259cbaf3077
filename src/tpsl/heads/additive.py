"""An additive model of one party's own fields.

    log-odds of a record = base + Σ_f effect of its category in field f + Σ_j slope_j·x_j + Σ_(f,g) effect of its cell

where the cells are those of some pairs of fields (f, g).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tpsl.data.features import Features
from tpsl.data.order import Rows

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Pair = tuple["Axis", "Axis"]

FAR = 5.0  # standard deviations; a number farther out counts as this far
_SCORED_AT_ONCE = 1 << 16  # records: what is computed of them stays in a cache


@dataclass(frozen=True)
class Axis:
    """What a pair is made of: a categorical field with few categories, or a number in bins."""

    column: int
    categorical: bool
    low: int
    """The lowest code, of a categorical field."""
    size: int
    """Number of codes; one more stands for what training did not see."""
    edges: Floats

    def codes(self, features: Features) -> Codes:
        """Return the codes of all records, from 0 to `size`."""
        if self.categorical:
            return _codes(features.categorical[:, self.column], self.low, self.size)
        return bins_of(features.numeric[:, self.column], self.edges)


@dataclass(frozen=True)
class AdditiveModel:
    """A fitted model; it reads features that are encoded as those it was fitted on."""

    base: float
    lows: Codes
    """The lowest category of each field."""
    effects: tuple[Floats, ...]
    """Of each field: the effect of each category from the lowest on, and 0 at last for one that was not seen."""
    slopes: Floats
    pairs: tuple[Pair, ...]
    cells: tuple[Floats, ...]

    def scores(self, features: Features, rows: Rows) -> npt.NDArray[np.float32]:
        """Return the log-odds of class 1 for these rows; that of a row does not depend on the others."""
        found = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), _SCORED_AT_ONCE):
            part = slice(start, start + _SCORED_AT_ONCE)
            found[part] = self._log_odds(features.take(rows[part]))
            features.release_pages()
        return found

    def _log_odds(self, features: Features) -> Floats:
        found = np.full(len(features), self.base)
        for field, (low, effects) in enumerate(zip(self.lows, self.effects, strict=True)):
            found += effects[_codes(features.categorical[:, field], int(low), len(effects) - 1)]
        for column, slope in enumerate(self.slopes):
            found += slope * np.clip(features.numeric[:, column].astype(np.float64), -FAR, FAR)
        for pair, effects in zip(self.pairs, self.cells, strict=True):
            one, other = (axis.codes(features) for axis in pair)
            found += effects[one * width_of(pair) + other]
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return the model as named tensors, for a file."""
        axes = [axis for pair in self.pairs for axis in pair]
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "base": np.array([self.base]),
            "lows": self.lows,
            "categories": np.array([len(effects) for effects in self.effects], dtype=np.int64),
            "effects": _joined(self.effects),
            "slopes": self.slopes,
            "axes": np.array([(a.column, a.categorical, a.low, a.size) for a in axes], dtype=np.int64).reshape(-1, 4),
            "edges": _joined([axis.edges for axis in axes]),
            "cells": _joined(self.cells),
        }
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> AdditiveModel:
        """Return the model that `tensors` was made of."""
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        axes, at = [], 0
        for column, categorical, low, size in arrays["axes"].tolist():
            count = 0 if categorical else size - 1
            axes.append(Axis(column, bool(categorical), low, size, arrays["edges"][at : at + count]))
            at += count
        pairs = tuple(zip(axes[::2], axes[1::2], strict=True))
        return cls(
            base=float(arrays["base"][0]),
            lows=arrays["lows"],
            effects=_parted(arrays["effects"], arrays["categories"].tolist()),
            slopes=arrays["slopes"],
            pairs=pairs,
            cells=_parted(arrays["cells"], [cells_of(pair) for pair in pairs]),
        )


def width_of(pair: Pair) -> int:
    """Return by how much the number of a cell grows with the code of the first axis."""
    return pair[1].size + 1


def cells_of(pair: Pair) -> int:
    """Return how many cells a pair has, those that training did not see included."""
    return (pair[0].size + 1) * width_of(pair)


def bins_of(values: npt.NDArray[np.float32], edges: Floats) -> Codes:
    """Return the bin of each number, from 0; a number at an edge is in the bin above it."""
    return np.searchsorted(edges, values, side="right").astype(np.int64)


def _codes(categories: npt.NDArray[np.int32], low: int, size: int) -> Codes:
    """Return categories as numbers from 0; `size` for one that training did not see."""
    codes = categories.astype(np.int64) - low
    return np.where((codes >= 0) & (codes < size), codes, size)


def _joined(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *arrays])


def _parted(array: Floats, sizes: Sequence[int]) -> tuple[Floats, ...]:
    ends = np.cumsum([0, *sizes])
    return tuple(array[begin:end] for begin, end in pairwise(ends))
