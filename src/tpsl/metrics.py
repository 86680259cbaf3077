"""Measures of a prediction: AUC with its confidence interval, log loss, calibration error.

Used for the test set (label party) and for attacks, so that every AUC in the program means the same thing. Of two
classes, a measure takes the memory of a few blocks of records, however many there are and wherever they lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tpsl.spill import Array, SortedRows, cache_folder

Floats = npt.NDArray[np.floating]

GUESSING = 0.5
"""The AUC of a score that knows nothing."""

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


def no_better_than_guessing(low: float) -> bool:
    """Whether an AUC may be that of guessing: its interval, which begins at `low`, reaches 0.5."""
    return low <= GUESSING


def auc(scores: npt.ArrayLike, positive: npt.ArrayLike, confidence: float = 0.95) -> AUC:
    """Return the area under the ROC curve, ties counted half, with its confidence interval.

    Raises ValueError if a class is missing or a score is NaN: an AUC does not exist then.
    """
    values, is_positive = _floats(scores), np.asarray(positive)
    if values.shape != is_positive.shape or values.ndim != 1:
        raise ValueError(f"scores {values.shape} and labels {is_positive.shape} do not fit together")
    for block in blocks(len(values)):
        if (bad := np.isnan(values[block])).any():
            raise ValueError(f"score {block.start + int(bad.argmax())} is NaN")
    positives = _positives(is_positive)
    if not 0 < positives < len(values):
        raise ValueError(
            f"an AUC needs both classes, got {positives} positives and {len(values) - positives} negatives"
        )
    return _with_interval(*auc_with_variance(values, is_positive), confidence)


def half_width(standard_error: float, confidence: float = 0.95) -> float:
    """Return half of the confidence interval of an estimate with this standard error."""
    return NormalDist().inv_cdf((1 + confidence) / 2) * standard_error


def _with_interval(area: float, variance: float, confidence: float) -> AUC:
    margin = half_width(math.sqrt(variance), confidence)
    return AUC(area, max(0.0, area - margin), min(1.0, area + margin))


def auc_with_variance(scores: Floats, positive: Array) -> tuple[float, float]:
    """Return an AUC, ties counted half, and the variance of it by DeLong, DeLong and Clarke-Pearson (1988)."""
    positives = _positives(positive)
    negatives, won = len(scores) - positives, 0
    of_positives, of_negatives = Spread(), Spread()
    positives_below = negatives_below = 0
    for _, here, positives_here in by_score(len(scores), lambda block: (scores[block], positive[block].astype(bool))):
        negatives_here = here - positives_here
        # Twice as many as lie below each score, equal ones counted half: whole numbers.
        positives_twice = 2 * (positives_below + positives_here.cumsum()) - positives_here
        negatives_twice = 2 * (negatives_below + negatives_here.cumsum()) - negatives_here
        won += int(positives_here @ negatives_twice)
        of_positives.add(negatives_twice / (2 * negatives), positives_here)
        of_negatives.add(positives_twice / (2 * positives), negatives_here)
        positives_below += int(positives_here.sum())
        negatives_below += int(negatives_here.sum())
    area = won / (2 * positives * negatives)
    # The variance of one number cannot be estimated; the largest one with this mean and values in [0, 1] stands in.
    largest, spreads = area * (1.0 - area), (of_positives, of_negatives)
    return area, sum(each.variance / each.count if each.count > 1 else largest for each in spreads)


def _positives(positive: Array) -> int:
    return sum(int(np.count_nonzero(positive[block])) for block in blocks(len(positive)))


class Spread:
    """The mean of numbers that come in blocks, and their squared distances from it.

    Blocks are joined as Chan, Golub and LeVeque do ("Algorithms for computing the sample variance", 1983).
    """

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    def add(self, values: Floats, times: npt.NDArray[np.int64] | None = None) -> None:
        """Add numbers, each of them once or so many `times`."""
        count = len(values) if times is None else int(times.sum())
        if not count:
            return
        own, share = float(np.average(values, weights=times)), count / (self.count + count)
        squares = np.square(values - own)
        self._squares += float(squares.sum() if times is None else squares @ times)
        self._squares += (own - self.mean) ** 2 * self.count * share
        self.mean += (own - self.mean) * share
        self.count += count

    @property
    def variance(self) -> float:
        """The variance of the population that the numbers, two at least, were drawn from."""
        return self._squares / (self.count - 1)


BlockOf = Callable[[slice], tuple[Floats, Array]]
"""The scores of a block of records, and something of each, a number or several, that is added up."""
Levels = tuple[Floats, npt.NDArray[np.int64], Array]
"""Different scores, ascending; of each how many records have it, and the sum over them."""


def by_score(count: int, block_of: BlockOf) -> Iterator[Levels]:
    """Yield the different scores of all records in ascending order, piece by piece; blocks are asked for twice."""
    last: Levels | None = None
    with SortedRows(cache_folder(), lambda: map(block_of, blocks(count))) as records:
        for scores, addends in records.parts():
            for block in blocks(len(scores)):
                here = _summed(scores[block], np.ones(len(scores[block]), np.int64), addends[block])
                if last is not None:
                    here = _summed(*map(np.concatenate, zip(last, here, strict=True)))
                last = here[0][-1:], here[1][-1:], here[2][-1:]  # what comes next may go on with this score
                if len(here[0]) > 1:
                    yield here[0][:-1], here[1][:-1], here[2][:-1]
    if last is not None:
        yield last


def _summed(scores: Array, times: Array, addends: Array) -> Levels:
    """Add up what belongs to equal scores, which stand together."""
    begins = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    dtype = np.int64 if addends.dtype == np.bool_ else None
    return scores[begins], np.add.reduceat(times, begins), np.add.reduceat(addends, begins, dtype=dtype)


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
    _, predicted, observed = calibration_bins(probabilities, labels, bins)
    return float(np.abs(predicted - observed).sum() / len(probabilities))


def calibration_bins(probabilities: Floats, labels: npt.ArrayLike, bins: int) -> tuple[Floats, Floats, Floats]:
    """Return of each equally filled bin how many records it has, and the sums of what was predicted and observed.

    Two classes: the probability of class 1, and its records. More classes: the largest probability, and how often it
    is right.
    """
    two = np.ndim(probabilities) == 1
    for _ in _blocks(probabilities, labels):
        pass  # a record that cannot be measured is named

    def predicted_and_hit(block: slice) -> tuple[Floats, npt.NDArray[np.bool_]]:
        p, truth = _floats(probabilities[block]), labels_of[block]
        return (p, truth == 1) if two else (p.max(axis=1), p.argmax(axis=1) == truth)

    count, below, labels_of = len(probabilities), 0, np.asarray(labels)
    records, sums, hits = np.zeros(bins), np.zeros(bins), np.zeros(bins)
    for predicted, here, hits_here in by_score(count, predicted_and_hit):
        upto = below + here.cumsum()
        # A bin of ranks, not of records: how records with equal predictions happen to be ordered must not matter.
        bin_of = ((2 * upto - here) / (2.0 * count) * bins).astype(np.intp)
        for total, addends in ((records, here), (sums, predicted.astype(np.float64) * here), (hits, hits_here)):
            total += np.bincount(bin_of, addends, bins)
        below = int(upto[-1])
    return records, sums, hits


def precision_recall(scores: Floats, positive: Array, points: int = 100) -> list[tuple[float, float]]:
    """Return recall and precision of thresholds, from the one that all records reach; at most `points` and one."""
    total, positives, below, positives_below, curve = (
        len(scores),
        _positives(positive),
        0,
        0,
        list[tuple[float, float]](),
    )
    for _, here, positives_here in by_score(total, lambda block: (scores[block], positive[block].astype(bool))):
        reached = total - below - here.cumsum() + here
        found = positives - positives_below - positives_here.cumsum() + positives_here
        for tp, guessed in zip(found.tolist(), reached.tolist(), strict=True):
            recall = tp / positives
            if not curve or curve[-1][0] - recall >= 1 / points:
                curve.append((recall, tp / guessed))
        below, positives_below = below + int(here.sum()), positives_below + int(positives_here.sum())
    return curve


def rank_bins(predicted: Floats, bins: int) -> npt.NDArray[np.intp]:
    """Return the bin of each prediction: equally filled but for equal predictions, which share one.

    Bins of ranks, not of records: how records with equal predictions happen to be ordered must not matter.
    """
    order, bin_of = np.argsort(predicted, kind="stable"), np.empty(len(predicted), dtype=np.intp)
    # Looked up in their order, which is far faster than in any other.
    bin_of[order] = _share_below(predicted[order], predicted[order]) * bins
    return bin_of


def _floats(values: npt.ArrayLike) -> Floats:
    """Return numbers as an array of the precision that they have."""
    found = np.asarray(values)
    return found if found.dtype.kind == "f" else found.astype(np.float64)


def blocks(count: int) -> Iterator[slice]:
    """Yield all records in blocks of bounded size."""
    for start in range(0, count, _AT_ONCE):
        yield slice(start, start + _AT_ONCE)


def _blocks(
    probabilities: Floats, labels: npt.ArrayLike
) -> Iterator[tuple[slice, npt.NDArray[np.float64], npt.NDArray[np.intp]]]:
    """Yield blocks of records: which they are, and what `_checked` returns."""
    p, truth = np.asarray(probabilities), np.asarray(labels)
    if len(p) != len(truth) or not len(p):
        raise ValueError(f"probabilities {p.shape} and labels {truth.shape} do not fit together")
    for block in blocks(len(p)):
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
