"""The wide part of the network: an additive model of one party's own fields, fitted on noisy labels.

    log-odds of a record = base + Σ_f effect of its category in field f + Σ_j slope_j·x_j + Σ_(f,g) effect of its cell

where the cells are those of some pairs of fields (f, g). A deep network learns what the labels say of a field only
while it learns everything else, and at small ε the noise is learned faster. Here every field has few effects, each is
shrunk by how much the field's effects vary (empirical Bayes), and nothing has to be tuned. All of it is post-processing
of the noisy labels.

Fitting is backfitting: field after field, the effects that explain what the others leave over. Within a field the
categories share no record, so their posterior means are a division each, and a sweep over all fields costs no more than
reading the table. How much a field's effects vary is estimated in the same sweep (MacKay 1992). Every other sweep the
curve from log-odds to probability is straightened anew at the model as it is: the Gauss-Newton method for the squared
error of the probabilities against unbiased estimates of the labels, whose noise is the same for all. Pairs of fields
that explain more of what is left than noise would are found by a test, and the strongest of them join.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tpsl.data.features import Features
from tpsl.data.order import permutation
from tpsl.data.split import FOLD_STREAM, Rows

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

SCORE_FIELD = "wide score"

_FOLDS = 5
_SWEEPS_BEFORE_PAIRS, _SWEEPS = 4, 8
_SWEEPS_ON_A_LINE = 2
_EXPLAINED, _EXPLAINED_BY_PAIRS = 0.03, 0.01
"""The variance of the label that fields, and pairs, are expected to explain before any label is seen."""
_PRIOR_WEIGHT = 8.0
"""How many effects that expectation is worth."""
_PAIRED_CATEGORIES = 400  # a field with more of them has too few records in a cell
_BINS = 8  # of a number, in pairs
_MOST_PAIRS = 64
_SIGNIFICANT = 2.0  # standard deviations above what noise explains
FAR = 5.0  # standard deviations; a number farther out counts as this far
_STEEPNESS_AT_LEAST = 0.1  # of the curve from log-odds to probability, against that at the base rate


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

    def codes(self, features: Features, rows: Rows) -> Codes:
        """Return the codes of these rows, from 0 to `size`."""
        if self.categorical:
            return _codes(features.categorical[rows, self.column], self.low, self.size)
        bins: Codes = np.searchsorted(self.edges, features.numeric[rows, self.column], side="right").astype(np.int64)
        return bins


@dataclass(frozen=True)
class AdditiveModel:
    """A fitted model; it reads features that are encoded as those it was fitted on."""

    base: float
    lows: Codes
    """The lowest category of each field."""
    effects: tuple[Floats, ...]
    """Of each field: the effect of each category from the lowest on, and 0 at last for one that was not seen."""
    slopes: Floats
    pairs: tuple[tuple[Axis, Axis], ...]
    cells: tuple[Floats, ...]

    def scores(self, features: Features, rows: Rows) -> npt.NDArray[np.float32]:
        """Return the log-odds of class 1 for these rows."""
        found = np.full(len(rows), self.base)
        for field, (low, effects) in enumerate(zip(self.lows, self.effects, strict=True)):
            found += effects[_codes(features.categorical[rows, field], int(low), len(effects) - 1)]
        found += _numbers(features, rows) @ self.slopes
        for (one, other), effects in zip(self.pairs, self.cells, strict=True):
            found += effects[one.codes(features, rows) * (other.size + 1) + other.codes(features, rows)]
        return found.astype(np.float32)

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
            cells=_parted(arrays["cells"], [_cells(pair) for pair in pairs]),
        )


def fit_additive(features: Features, rows: Rows, estimates: Floats) -> AdditiveModel:
    """Fit the model on these rows and an unbiased estimate of the label of each, 0 or 1, from its noisy label.

    Guarantee: a function of the features and the estimates, so post-processing of the release they come from.
    """
    if len(rows) != len(estimates) or len(rows) < 2:
        raise ValueError(f"{len(rows)} records with {len(estimates)} estimates: an additive model needs two of each")
    fitting = _Fitting(features, rows, estimates)
    fitting.sweep(_SWEEPS_BEFORE_PAIRS)
    fitting.choose_pairs()
    fitting.sweep(_SWEEPS)
    return fitting.model()


def cross_fit(
    features: Features, rows: Rows, estimates: Floats, seed: int
) -> tuple[AdditiveModel, npt.NDArray[np.float32]]:
    """Return the model of these rows, and a score for every row of the features.

    A row that was fitted is scored by a model of the other four fifths: its own noisy label has no part in its score.
    A network that sees scores of such a model would otherwise learn to trust its noise. All other rows are scored by
    the model itself.
    """
    model = fit_additive(features, rows, estimates)
    scores = np.empty(len(features), dtype=np.float32)
    others = np.ones(len(features), dtype=bool)
    others[rows] = False
    rest = np.flatnonzero(others)
    scores[rest] = model.scores(features, rest)
    folds = permutation(len(rows), FOLD_STREAM, seed) % min(_FOLDS, len(rows) - 1)
    for fold in np.unique(folds):
        inside = folds == fold
        without = fit_additive(features, rows[~inside], estimates[~inside])
        scores[rows[inside]] = without.scores(features, rows[inside])
    return model, scores


def with_scores(features: Features, scores: npt.NDArray[np.float32]) -> Features:
    """Return the features with the score of each row as their last number, as a bottom half with a wide part reads."""
    return Features(
        features.categorical,
        np.concatenate([features.numeric, scores[:, None]], axis=1),
        features.embedding_rows,
        features.categorical_fields,
        (*features.numeric_fields, SCORE_FIELD),
    )


def newly_scored_features(features: Features, model: AdditiveModel) -> Features:
    """Return features of any records with the scores that a wide part gives them."""
    return with_scores(features, model.scores(features, np.arange(len(features), dtype=np.int64)))


def unscored_features(features: Features) -> Features:
    """Return the features with a score of 0 for each record: what a half sees before there are noisy labels."""
    return with_scores(features, np.zeros(len(features), dtype=np.float32))


class _Fitting:
    """Backfitting: each group of effects in turn explains what all others leave over."""

    def __init__(self, features: Features, rows: Rows, estimates: Floats) -> None:
        self._features, self._rows, self._estimates = features, rows, estimates
        rate = min(max(float(estimates.mean()), 1e-3), 1 - 1e-3)
        self._base, self._steepness = math.log(rate / (1 - rate)), rate * (1 - rate)
        self._noise = max(float(estimates.var()), 1e-12)
        self._log_odds = np.full(len(rows), self._base)
        categorical = features.categorical[rows]
        self._lows = categorical.min(axis=0).astype(np.int64)
        self._codes = [categorical[:, field] - np.int32(low) for field, low in enumerate(self._lows)]
        self._numbers = _numbers(features, rows)
        self._slopes = np.zeros(self._numbers.shape[1])
        # A variance of the label's probability, as one of its log-odds.
        self._expected = _EXPLAINED / max(1, len(self._codes) + len(self._slopes)) / self._steepness**2
        self._slope_variance = np.full(len(self._slopes), self._expected)
        self._fields = [_Group(int(codes.max()) + 1, self._expected) for codes in self._codes]
        self._pairs: list[tuple[Axis, Axis]] = []
        self._paired: list[tuple[int, int]] = []
        self._cells: list[_Group] = []
        self._axis_codes: list[npt.NDArray[np.int16]] = []
        self._linearise()

    def _linearise(self) -> None:
        """Straighten the curve from log-odds to probability at the model as it is.

        An estimate e of the label then stands for `(e - p) / (p·(1-p))` more of log-odds, with the weight `(p·(1-p))²`.
        """
        probability = 1 / (1 + np.exp(-np.clip(self._log_odds, -30, 30)))
        steepness = np.maximum(probability * (1 - probability), _STEEPNESS_AT_LEAST * self._steepness)
        self._weights = np.square(steepness)
        self._left = (self._estimates - probability) / steepness
        self._squares = self._weights @ np.square(self._numbers)
        for codes, group in zip(self._codes, self._fields, strict=True):
            group.weigh(codes, self._weights)
        for pair, numbers, group in zip(self._pairs, self._paired, self._cells, strict=True):
            group.weigh(self._cell(pair, numbers), self._weights)

    def sweep(self, times: int) -> None:
        for done in range(times):
            if done % _SWEEPS_ON_A_LINE == 0:
                self._linearise()
            before = self._left.copy()
            for number in range(len(self._slopes)):
                self._update_slope(number)
            for codes, group in zip(self._codes, self._fields, strict=True):
                group.update(codes, self._left, self._weights, self._noise)
            for pair, numbers, group in zip(self._pairs, self._paired, self._cells, strict=True):
                group.update(self._cell(pair, numbers), self._left, self._weights, self._noise)
            self._log_odds += before - self._left

    def _update_slope(self, number: int) -> None:
        values, square = self._numbers[:, number], self._squares[number]
        penalty = self._noise / self._slope_variance[number]
        slope = ((self._weights * values) @ self._left + square * self._slopes[number]) / (square + penalty)
        self._left -= (slope - self._slopes[number]) * values
        self._slopes[number] = slope
        known = square / (square + penalty)
        self._slope_variance[number] = (slope**2 + _PRIOR_WEIGHT * self._expected) / (known + _PRIOR_WEIGHT)

    def choose_pairs(self) -> None:
        """Take the pairs whose cells explain significantly more of what is left than as many cells of noise would."""
        axes = self._axes()
        self._axis_codes = [axis.codes(self._features, self._rows).astype(np.int16) for axis in axes]
        found, weighted = [], self._weights * self._left
        for numbers in combinations(range(len(axes)), 2):
            pair = (axes[numbers[0]], axes[numbers[1]])
            cells = self._cell(pair, numbers)
            weights = np.bincount(cells, weights=self._weights, minlength=_cells(pair))
            sums = np.bincount(cells, weights=weighted, minlength=_cells(pair))
            seen = weights > 0
            explained = float((np.square(sums[seen]) / weights[seen]).sum()) / self._noise
            degrees = int(seen.sum())
            surprise = (explained - degrees) / np.sqrt(2 * degrees)
            if surprise > _SIGNIFICANT:
                found.append((-surprise, numbers, pair))
        for _, numbers, pair in sorted(found, key=lambda entry: entry[:2])[:_MOST_PAIRS]:
            self._pairs.append(pair)
            self._paired.append(numbers)
            expected = _EXPLAINED_BY_PAIRS / _MOST_PAIRS / self._steepness**2
            self._cells.append(_Group(_cells(pair) - 1, expected))

    def _cell(self, pair: tuple[Axis, Axis], numbers: tuple[int, int]) -> Codes:
        one, other = (self._axis_codes[number] for number in numbers)
        return one.astype(np.int64) * (pair[1].size + 1) + other

    def _axes(self) -> list[Axis]:
        none = np.empty(0)
        axes = [
            Axis(field, True, int(low), group.size, none)
            for field, (low, group) in enumerate(zip(self._lows, self._fields, strict=True))
            if 1 < group.size <= _PAIRED_CATEGORIES
        ]
        for column in range(self._features.numeric.shape[1]):
            values = self._features.numeric[self._rows, column]
            edges = np.unique(np.quantile(values, np.arange(1, _BINS) / _BINS)).astype(np.float64)
            if len(edges) > 1:
                axes.append(Axis(column, False, 0, len(edges) + 1, edges))
        return axes

    def model(self) -> AdditiveModel:
        return AdditiveModel(
            base=self._base,
            lows=self._lows,
            effects=tuple(group.effects for group in self._fields),
            slopes=self._slopes,
            pairs=tuple(self._pairs),
            cells=tuple(group.effects for group in self._cells),
        )


class _Group:
    """The effects of one field or pair, a normal prior on them, and how much they vary."""

    def __init__(self, size: int, expected: float) -> None:
        self.size = size
        self.effects = np.zeros(size + 1)
        self._sums: Floats = np.zeros(size + 1)
        self._expected = self._variance = expected

    def weigh(self, codes: npt.NDArray[np.integer], weights: Floats) -> None:
        """Note how much weight lies on each effect."""
        self._sums = np.bincount(codes, weights=weights, minlength=self.size + 1).astype(np.float64)

    def update(self, codes: npt.NDArray[np.integer], left: Floats, weights: Floats, noise: float) -> None:
        """Set the effects to their posterior means given what all other groups leave over; `left` is kept up."""
        penalty = noise / self._variance
        explained = np.bincount(codes, weights=weights * left, minlength=self.size + 1)
        effects = (explained + self._sums * self.effects) / (self._sums + penalty)
        left -= (effects - self.effects)[codes]
        self.effects = effects
        known = float((self._sums / (self._sums + penalty)).sum())
        square = float(np.square(effects).sum())
        self._variance = (square + _PRIOR_WEIGHT * self._expected) / (known + _PRIOR_WEIGHT)


def _numbers(features: Features, rows: Rows) -> Floats:
    return np.clip(features.numeric[rows].astype(np.float64), -FAR, FAR)


def _codes(categories: npt.NDArray[np.int32], low: int, size: int) -> Codes:
    """Return categories as numbers from 0; `size` for one that training did not see."""
    codes = categories.astype(np.int64) - low
    return np.where((codes >= 0) & (codes < size), codes, size)


def _cells(pair: tuple[Axis, Axis]) -> int:
    return (pair[0].size + 1) * (pair[1].size + 1)


def _joined(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *arrays])


def _parted(array: Floats, sizes: Sequence[int]) -> tuple[Floats, ...]:
    ends = np.cumsum([0, *sizes])
    return tuple(array[begin:end] for begin, end in pairwise(ends))
