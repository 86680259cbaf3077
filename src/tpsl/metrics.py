"""Measures of a prediction: AUC with its confidence interval, log loss, calibration error. NumPy alone.

Used for the test set (label party) and for attacks, so that every AUC in the program means the same thing. Of two
classes, a measure takes the memory of a copy or two of the predictions, and of a block of records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]

_AT_ONCE = 1 << 18
"""Records of a block."""


@dataclass(frozen=True)
class AUC:
    """An AUC and the two-sided confidence interval of DeLong, DeLong and Clarke-Pearson (1988) around it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def auc(scores: npt.ArrayLike, positive: npt.ArrayLike, confidence: float = 0.95) -> AUC:
    """Return the area under the ROC curve, ties counted half, with its confidence interval.

    Raises ValueError if a class is missing or a score is NaN: an AUC does not exist then.
    """
    values, is_positive = _floats(scores), np.asarray(positive, dtype=bool)
    if values.shape != is_positive.shape or values.ndim != 1:
        raise ValueError(f"scores {values.shape} and labels {is_positive.shape} do not fit together")
    if np.isnan(values).any():
        raise ValueError(f"score {int(np.isnan(values).argmax())} is NaN")
    if not 0 < is_positive.sum() < len(is_positive):
        positives = int(is_positive.sum())
        raise ValueError(
            f"an AUC needs both classes, got {positives} positives and {len(values) - positives} negatives"
        )
    return _with_interval(*auc_with_variance(values, is_positive), confidence)


def _with_interval(area: float, variance: float, confidence: float) -> AUC:
    margin = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(variance)
    return AUC(area, max(0.0, area - margin), min(1.0, area + margin))


def auc_with_variance(scores: Floats, positive: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Return an AUC, ties counted half, and the variance of it by DeLong, DeLong and Clarke-Pearson (1988)."""
    of_positives, of_negatives = scores[positive], scores[~positive]
    of_positives.sort()
    of_negatives.sort()
    area, above = _mean_and_squares(_shares_below(of_positives, of_negatives))
    _, below = _mean_and_squares(_shares_below(of_negatives, of_positives))
    # The variance of one number cannot be estimated; the largest one with this mean and values in [0, 1] stands in.
    largest = area * (1.0 - area)
    counted = ((above, len(of_positives)), (below, len(of_negatives)))
    return area, sum(squares / (count - 1) / count if count > 1 else largest for squares, count in counted)


def _mean_and_squares(blocks: Iterable[Floats]) -> tuple[float, float]:
    """Return the mean of numbers that come in blocks, and the sum of their squared distances from it.

    Blocks are joined as Chan, Golub and LeVeque do ("Algorithms for computing the sample variance", 1983).
    """
    count, mean, squares = 0, 0.0, 0.0
    for block in blocks:
        own, share = float(block.mean()), len(block) / (count + len(block))
        squares += float(np.square(block - own).sum()) + (own - mean) ** 2 * count * share
        mean += (own - mean) * share
        count += len(block)
    return mean, squares


def _shares_below(values: Floats, others: Floats) -> Iterator[npt.NDArray[np.float64]]:
    """Yield what `_share_below` returns, block by block."""
    for block in _slices(len(values)):
        yield _share_below(values[block], others)


def _share_below(values: Floats, others: Floats) -> npt.NDArray[np.float64]:
    """Return for each value the share of the sorted others that lie below it, equal ones counted half."""
    first, last = np.searchsorted(others, values, "left"), np.searchsorted(others, values, "right")
    return (first + last) / (2.0 * len(others))


def macro_auc(probabilities: Floats, labels: npt.ArrayLike, confidence: float = 0.95) -> AUC:
    """Return the mean over classes of the AUC of that class against the rest; classes without records are left out.

    The interval is DeLong's, carried over to the mean: each record has a part in the AUC of every class, and it is the
    variance of all its parts together, among the records of its class, that counts. For two classes it is that of
    `auc`.
    """
    by_class, truth = _checked(probabilities, labels)
    present = np.flatnonzero(np.bincount(truth, minlength=by_class.shape[1]))
    if len(present) < 2:
        raise ValueError(f"an AUC needs two classes, all {len(truth)} labels are {present[0]}")
    parts, weights = np.zeros(len(truth)), np.zeros(len(truth))
    for j in present:
        own, scores = truth == j, by_class[:, j]
        of_own, of_others = np.sort(scores[own]), np.sort(scores[~own])
        weight = 1.0 / (len(present) * np.where(own, len(of_own), len(of_others)))
        won = np.where(own, _share_below(scores, of_others), 1.0 - _share_below(scores, of_own))
        parts += weight * won
        weights += weight
    # Over the records of a class and over all others, the parts in its AUC add up to it: twice over all records.
    area, variance = float(parts.sum()) / 2, 0.0
    for j in present:
        own = parts[truth == j]
        # As for two classes: the largest variance that one record's part can have stands in.
        largest = float(own[0] * (weights[truth == j][0] - own[0]))
        variance += len(own) * float(own.var(ddof=1)) if len(own) > 1 else largest
    return _with_interval(area, variance, confidence)


def log_loss(probabilities: Floats, labels: npt.ArrayLike) -> float:
    """Return the mean of `-ln p(label)`; probabilities of shape [n] mean class 1 of two."""
    total = 0.0
    for _, by_class, truth in _blocks(probabilities, labels):
        chosen = np.take_along_axis(by_class, truth[:, None], axis=1)
        total += float(-np.log(np.clip(chosen, 1e-15, 1.0)).sum())
    return total / len(probabilities)


def accuracy(probabilities: Floats, labels: npt.ArrayLike) -> float:
    """Return how often the most probable class is the true one."""
    found = _blocks(probabilities, labels)
    return sum(int((by_class.argmax(axis=1) == truth).sum()) for _, by_class, truth in found) / len(probabilities)


def calibration_error(probabilities: Floats, labels: npt.ArrayLike, bins: int = 15) -> float:
    """Return the expected calibration error over equally filled bins; equal predictions share a bin.

    Two classes: |mean predicted - observed rate| of class 1. More classes: confidence against accuracy.
    """
    predicted = np.empty(len(probabilities), _floats(probabilities).dtype)
    hit = np.empty(len(probabilities), np.bool_)
    for block, by_class, truth in _blocks(probabilities, labels):
        if np.ndim(probabilities) == 1:
            predicted[block], hit[block] = by_class[:, 1], truth == 1
        else:
            predicted[block], hit[block] = by_class.max(axis=1), by_class.argmax(axis=1) == truth
    gaps, ranked = np.zeros(bins), np.sort(predicted)
    for block in _slices(len(predicted)):
        bin_of = _bins_among(ranked, predicted[block], bins)
        gaps += np.bincount(bin_of, predicted[block], bins) - np.bincount(bin_of, hit[block], bins)
    return float(np.abs(gaps).sum() / len(predicted))


def rank_bins(predicted: Floats, bins: int) -> npt.NDArray[np.intp]:
    """Return the bin of each prediction: equally filled but for equal predictions, which share one.

    Bins of ranks, not of records: how records with equal predictions happen to be ordered must not matter.
    """
    return _bins_among(np.sort(predicted), predicted, bins)


def _bins_among(ranked: Floats, predicted: Floats, bins: int) -> npt.NDArray[np.intp]:
    """Return the bin of each of some predictions among all, which are sorted."""
    order, bin_of = np.argsort(predicted, kind="stable"), np.empty(len(predicted), dtype=np.intp)
    # Looked up in their order, which is far faster than in any other.
    bin_of[order] = _share_below(predicted[order], ranked) * bins
    return bin_of


def _floats(values: npt.ArrayLike) -> Floats:
    """Return numbers as an array of the precision that they have."""
    found = np.asarray(values)
    return found if found.dtype.kind == "f" else found.astype(np.float64)


def _slices(count: int) -> Iterator[slice]:
    for start in range(0, count, _AT_ONCE):
        yield slice(start, start + _AT_ONCE)


def _blocks(
    probabilities: Floats, labels: npt.ArrayLike
) -> Iterator[tuple[slice, npt.NDArray[np.float64], npt.NDArray[np.intp]]]:
    """Yield blocks of records: which they are, and what `_checked` returns."""
    p, truth = np.asarray(probabilities), np.asarray(labels)
    if len(p) != len(truth) or not len(p):
        raise ValueError(f"probabilities {p.shape} and labels {truth.shape} do not fit together")
    for block in _slices(len(p)):
        yield block, *_checked(p[block], truth[block], block.start)


def _checked(
    probabilities: Floats, labels: npt.ArrayLike, first: int = 0
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp]]:
    """Return a column for each class and the labels as integers, or raise a ValueError that names the bad record.

    Records are numbered from `first` on.
    """
    p, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    by_class = np.stack([1.0 - p, p], axis=1) if p.ndim == 1 else p
    if by_class.ndim != 2 or truth.shape != by_class.shape[:1] or not len(truth):
        raise ValueError(f"probabilities {p.shape} and labels {truth.shape} do not fit together")
    for name, values, bad in (
        ("probabilities", p, ~np.isfinite(by_class).all(axis=1)),
        ("label", truth, ~np.isin(truth, np.arange(by_class.shape[1]))),
    ):
        if bad.any():
            record = int(bad.argmax())
            raise ValueError(f"record {first + record} has the {name} {values[record]}")
    return by_class, truth.astype(np.intp)
