"""Fits an additive model (`tpsl.heads.additive`) on noisy labels.

Backfitting: field after field, the effects that explain what the others leave over. Within a field the categories
share no record, so their posterior means are a division each, and a sweep over all fields costs no more than reading
the table. How much a field's effects vary is estimated in the same sweep (empirical Bayes, MacKay 1992). Every other
sweep the curve from log-odds to probability is straightened anew at the model as it is: the Gauss-Newton method for the
squared error of the probabilities against unbiased estimates of the labels, whose noise is the same for all. Pairs of
fields that explain more of what is left than noise would are found by a test, and the strongest of them join.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.data.out_of_core import empty
from tpsl.heads.additive import FAR, AdditiveModel, Axis, Floats, Pair, bins_of, cells_of, width_of
from tpsl.kernels.group_sums import (
    add_cells,
    add_products,
    add_values,
    take_off,
    take_off_multiple,
    weighted_product,
)

_SWEEPS_BEFORE_PAIRS, _SWEEPS = 4, 8
_SWEEPS_ON_A_LINE = 2
STEPS = _SWEEPS_BEFORE_PAIRS + 1 + _SWEEPS
"""How often a fit says that it has gone on."""
_EXPLAINED, _EXPLAINED_BY_PAIRS = 0.03, 0.01
"""The variance of the label that fields, and pairs, are expected to explain before any label is seen."""
_PRIOR_WEIGHT = 8.0
"""How many effects that expectation is worth."""
_PAIRED_CATEGORIES = 400  # a field with more of them has too few records in a cell
_BINS = 8  # of a number, in pairs
_MOST_PAIRS = 64
_SIGNIFICANT = 2.0  # standard deviations above what noise explains
_STEEPNESS_AT_LEAST = 0.1  # of the curve from log-odds to probability, against that at the base rate
_AT_ONCE = 1 << 16  # records

Column = npt.NDArray[np.int32]
"""The code of each record, from 0."""


def fit_additive(
    features: Features, rows: Rows, estimates: npt.NDArray[np.floating], step: Callable[[], None] = lambda: None
) -> AdditiveModel:
    """Fit the model on these rows and an unbiased estimate of the label of each, 0 or 1, from its noisy label.

    Guarantee: a function of the features and the estimates, so post-processing of the release they come from.
    `step` is called `STEPS` times, about as often in a second from beginning to end.
    """
    if len(rows) != len(estimates) or len(rows) < 2:
        raise ValueError(f"{len(rows)} records with {len(estimates)} estimates: an additive model needs two of each")
    fitting = _Fitting(_Columns(features, rows), estimates)
    for sweep in range(_SWEEPS_BEFORE_PAIRS):
        fitting.sweep(sweep)
        step()
    fitting.choose_pairs()
    step()
    for sweep in range(_SWEEPS):
        fitting.sweep(sweep)
        step()
    return fitting.model()


class _Columns:
    """The features of some records, column by column; in a file of the cache where they are large."""

    def __init__(self, features: Features, rows: Rows) -> None:
        self.codes = _by_column(features, features.categorical, rows)
        self.lows = self.codes.min(axis=1).astype(np.int64)
        for codes, low in zip(self.codes, self.lows, strict=True):
            codes -= np.int32(low)
        self.sizes = [int(codes.max()) + 1 for codes in self.codes]
        self.numbers = _by_column(features, features.numeric, rows)
        self.axes: list[tuple[Axis, Column]] = [
            (Axis(field, True, int(low), size, np.empty(0)), codes)
            for field, (low, size, codes) in enumerate(zip(self.lows, self.sizes, self.codes, strict=True))
            if 1 < size <= _PAIRED_CATEGORIES
        ]
        for column, values in enumerate(self.numbers):
            edges = np.unique(np.quantile(values, np.arange(1, _BINS) / _BINS)).astype(np.float64)
            if len(edges) > 1:
                bins = empty(len(rows), np.int32)
                bins[:] = bins_of(values, edges)
                self.axes.append((Axis(column, False, 0, len(edges) + 1, edges), bins))
            np.clip(values, -FAR, FAR, out=values)


def _by_column(features: Features, array: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
    """Return these rows of an array of the features, as one row for each column."""
    found = empty(array.shape[1] * len(rows), array.dtype).reshape(array.shape[1], len(rows))
    for part in _parts(len(rows)):
        found[:, part] = array[rows[part]].T
        features.release_pages()
    return found


def _parts(records: int) -> Iterator[slice]:
    """Yield all records in parts that stay in a cache."""
    return (slice(start, start + _AT_ONCE) for start in range(0, records, _AT_ONCE))


class _Fitting:
    """Backfitting: each group of effects in turn explains what all others leave over."""

    def __init__(self, columns: _Columns, estimates: npt.NDArray[np.floating]) -> None:
        self._columns, self._estimates = columns, estimates
        rate = min(max(float(estimates.mean(dtype=np.float64)), 1e-3), 1 - 1e-3)
        self._base, self._steepness = math.log(rate / (1 - rate)), rate * (1 - rate)
        self._noise = max(float(estimates.var(dtype=np.float64)), 1e-12)
        self._log_odds = np.full(len(estimates), self._base)
        self._left, self._weights = np.empty_like(self._log_odds), np.empty_like(self._log_odds)
        self._slopes = np.zeros(len(columns.numbers))
        # A variance of the label's probability, as one of its log-odds.
        self._expected = _EXPLAINED / max(1, len(columns.codes) + len(self._slopes)) / self._steepness**2
        self._slope_variance = np.full(len(self._slopes), self._expected)
        self._fields = [_Group(size, self._expected) for size in columns.sizes]
        self._pairs: list[_Crossed] = []
        self._cells = np.empty(len(estimates), np.int32)
        self._linearise()

    def _linearise(self) -> None:
        """Straighten the curve from log-odds to probability at the model as it is.

        An estimate e of the label then stands for `(e - p) / (p·(1-p))` more of log-odds, with the weight `(p·(1-p))²`.
        """
        for part in _parts(len(self._log_odds)):
            probability = 1 / (1 + np.exp(-np.clip(self._log_odds[part], -30, 30)))
            steepness = np.maximum(probability * (1 - probability), _STEEPNESS_AT_LEAST * self._steepness)
            self._weights[part] = np.square(steepness)
            self._left[part] = (self._estimates[part] - probability) / steepness
        self._squares = [weighted_product(self._weights, values, values) for values in self._columns.numbers]
        for codes, group in zip(self._columns.codes, self._fields, strict=True):
            group.weigh(codes, self._weights)
        for crossed in self._pairs:
            crossed.group.weigh(crossed.codes(self._cells), self._weights)

    def sweep(self, number: int) -> None:
        """Update every group once; `number` counts sweeps since the groups are what they are."""
        if number % _SWEEPS_ON_A_LINE == 0:
            self._linearise()
        before = self._left.copy()
        for column, values in enumerate(self._columns.numbers):
            self._update_slope(column, values)
        for codes, group in zip(self._columns.codes, self._fields, strict=True):
            group.update(codes, self._left, self._weights, self._noise)
        for crossed in self._pairs:
            crossed.group.update(crossed.codes(self._cells), self._left, self._weights, self._noise)
        self._log_odds += before - self._left

    def _update_slope(self, column: int, values: npt.NDArray[np.float32]) -> None:
        before, square = self._slopes[column], self._squares[column]
        penalty = self._noise / self._slope_variance[column]
        slope = (weighted_product(self._weights, values, self._left) + square * before) / (square + penalty)
        take_off_multiple(slope - before, values, self._left)
        self._slopes[column] = slope
        known = square / (square + penalty)
        self._slope_variance[column] = (slope**2 + _PRIOR_WEIGHT * self._expected) / (known + _PRIOR_WEIGHT)

    def choose_pairs(self) -> None:
        """Take the pairs whose cells explain significantly more of what is left than as many cells of noise would."""
        found = []
        for number, ((one, one_codes), (other, other_codes)) in enumerate(combinations(self._columns.axes, 2)):
            pair = (one, other)
            sums = np.zeros((cells_of(pair), 2))
            add_cells(one_codes, other_codes, width_of(pair), self._left, self._weights, sums)
            weights, explained = sums[sums[:, 0] > 0].T
            degrees = len(weights)
            surprise = (float((np.square(explained) / weights).sum()) / self._noise - degrees) / np.sqrt(2 * degrees)
            if surprise > _SIGNIFICANT:
                found.append((-surprise, number, pair, one_codes, other_codes))
        expected = _EXPLAINED_BY_PAIRS / _MOST_PAIRS / self._steepness**2
        for _, _, pair, *codes in sorted(found, key=lambda entry: entry[:2])[:_MOST_PAIRS]:
            self._pairs.append(_Crossed(pair, (codes[0], codes[1]), _Group(cells_of(pair) - 1, expected)))

    def model(self) -> AdditiveModel:
        return AdditiveModel(
            base=self._base,
            lows=self._columns.lows,
            effects=tuple(group.effects for group in self._fields),
            slopes=self._slopes,
            pairs=tuple(crossed.pair for crossed in self._pairs),
            cells=tuple(crossed.group.effects for crossed in self._pairs),
        )


class _Group:
    """The effects of one field or pair, a normal prior on them, and how much they vary."""

    def __init__(self, size: int, expected: float) -> None:
        self.effects = np.zeros(size + 1)
        self._sums: Floats = np.zeros(size + 1)
        self._expected = self._variance = expected

    def weigh(self, codes: Column, weights: Floats) -> None:
        """Note how much weight lies on each effect."""
        self._sums[:] = 0.0
        add_values(codes, weights, self._sums)

    def update(self, codes: Column, left: Floats, weights: Floats, noise: float) -> None:
        """Set the effects to their posterior means given what all other groups leave over; `left` is kept up."""
        penalty, explained = noise / self._variance, np.zeros_like(self._sums)
        add_products(codes, left, weights, explained)
        effects = (explained + self._sums * self.effects) / (self._sums + penalty)
        take_off(codes, effects - self.effects, left)
        self.effects = effects
        known = float((self._sums / (self._sums + penalty)).sum())
        square = float(np.square(effects).sum())
        self._variance = (square + _PRIOR_WEIGHT * self._expected) / (known + _PRIOR_WEIGHT)


@dataclass(frozen=True)
class _Crossed:
    """A pair of axes that has joined the model."""

    pair: Pair
    axis_codes: tuple[Column, Column]
    group: _Group

    def codes(self, out: Column) -> Column:
        """Return the cell of each record, in the array that is given for it."""
        one, other = self.axis_codes
        np.multiply(one, np.int32(width_of(self.pair)), out=out)
        return np.add(out, other, out=out)
