"""How good predictions are, from noisy labels alone: log loss, AUC, accuracy and calibration, with standard errors.

With t̂ the debiased noisy label, `E[t̂_j] = 1` for the true class j and 0 for the others. Log loss, accuracy, the rates
of the reliability bins and the squared calibration error have, on average over the noise, exactly the value that the
same formula has on true labels. The AUC is a ratio of two such estimates (Sun, Yang, Yao, Xie, Wu, Wang 2022,
"Differentially Private AUC Computation in Vertical Federated Learning", corrects the AUC for flipped labels alike).

All of it is post-processing of the release: it costs no ε beyond that of the noisy labels, and may be told to anybody.
So the label party compares epochs and configurations by these numbers alone, and what it decides (which weights to
keep, when to stop, `committee_weights`) may cross the border. Standard errors are those of noise and of the choice of
records together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.data.out_of_core import Rows, empty
from tpsl.mechanisms import Mechanism
from tpsl.metrics import Spread, blocks, by_score, half_width, rank_bins
from tpsl.run.result import Measured

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_SMALLEST = 1e-7  # no prediction is taken to be surer than this
_CLEAR = 4.0
"""A class is seen if its estimated size is this many standard errors away from none; a ratio needs it."""
_WIDEST = 0.1
"""Half of the 95 % interval of an AUC that still says something."""
_BINS = 10
TOO_FEW = "too few noisy labels to estimate it"
"""Why a hold-out of two classes has no AUC."""


@dataclass(frozen=True)
class Estimate:
    """A metric, its standard error, and why it is NaN where it is."""

    value: Measured
    standard_error: Measured
    reason: str = ""

    @classmethod
    def of_mean(cls, values: Spread) -> Estimate:
        """Return the mean of numbers; that of a single one has no standard error."""
        return cls(values.mean, math.sqrt(values.variance / values.count) if values.count > 1 else math.nan)


@dataclass(frozen=True)
class Validation:
    """A prediction judged by noisy labels."""

    validation_loss: Measured
    """Unbiased estimate of the log loss against the true labels, which nobody looked at."""
    validation_loss_se: Measured
    """Its standard error."""
    validation_log_likelihood: Measured
    """`Σ_i ln P(t_i | prediction)`, over all held-out records and draws: what candidates are compared by."""
    validation_auc: Measured
    """Estimate of the AUC against the true labels, corrected for the noise; may lie above 1.

    NaN for more than two classes, and where half of its 95 % interval is wider than 0.1 (`TOO_FEW`).
    """
    validation_auc_low: Measured
    """Its 95 % interval, for noise and the choice of records together; NaN where the AUC is."""
    validation_auc_high: Measured


@dataclass(frozen=True)
class ReliabilityBin:
    """Records with similar predictions: what was predicted of them and what is true, as far as noisy labels say."""

    records: int
    predicted: float
    """The mean probability of class 1; for more than two classes, of the most probable class."""
    observed: float
    """Unbiased estimate of how often it is the true class; noise may bring it below 0 or above 1."""
    standard_error: Measured


@dataclass(frozen=True)
class NoisyMetrics:
    """What noisy labels say of a prediction."""

    auc: Estimate
    """For more than two classes the mean AUC of one class against the rest."""
    log_loss: Estimate
    accuracy: Estimate
    squared_calibration_error: Estimate
    """The mean of `(predicted - observed)²` over the records, bin by bin."""
    reliability: tuple[ReliabilityBin, ...]


def noisy_validation(
    mechanism: Mechanism,
    draws: Sequence[npt.NDArray[Any]],
    probabilities: npt.NDArray[np.floating],
    rows: Rows | None = None,
) -> Validation:
    """Return what the outcomes of a mechanism say of probabilities, of class 1 (`[n]`) or of each class (`[n, k]`).

    With t̂ the debiased noisy label, `E[t̂_j] = 1` for the true class j and 0 for the others, the loss is the mean of
    `-Σ_j t̂_j ln p_j`. The log-likelihood is `ln Σ_j P(t|j)·p_j`: its expectation is greatest for the true
    probabilities, too, and it varies less. `rows` says which outcomes belong to the probabilities, if not all in order.
    Memory is that of a few blocks of records.
    """
    losses, likelihood, two = Spread(), 0.0, probabilities.ndim == 1
    estimates = empty(len(probabilities) if two else 0, np.float64)
    for block in blocks(len(probabilities)):
        outcomes = [draw[block if rows is None else rows[block]] for draw in draws]
        debiased = debiased_labels(mechanism, outcomes)
        losses.add(-(debiased * np.log(clipped(probabilities[block])[1])).sum(axis=1))
        likelihood += float(record_log_likelihoods(mechanism, outcomes, probabilities[block]).sum())
        if two:
            estimates[block] = debiased[:, 1]
    loss, area = Estimate.of_mean(losses), noisy_auc(probabilities, estimates) if two else _none()
    margin = half_width(area.standard_error)
    value = area.value if margin <= _WIDEST else math.nan  # a margin that is NaN is not
    return Validation(loss.value, loss.standard_error, likelihood, value, value - margin, value + margin)


def noisy_metrics(
    mechanism: Mechanism, draws: Sequence[npt.NDArray[Any]], probabilities: npt.NDArray[np.floating]
) -> NoisyMetrics:
    """Judge probabilities, of class 1 (`[n]`) or of each class (`[n, k]`), by the outcomes of the same records."""
    p, by_class = clipped(probabilities)
    debiased = debiased_labels(mechanism, draws)
    chosen = by_class.argmax(axis=1)
    hit = np.take_along_axis(debiased, chosen[:, None], axis=1)[:, 0]
    predicted, seen = (p, debiased[:, 1]) if p.ndim == 1 else (by_class.max(axis=1), hit)
    reliability = _reliability(predicted, seen)
    return NoisyMetrics(
        auc=noisy_auc(p, debiased[:, 1]) if p.ndim == 1 else _mean_auc(by_class, debiased),
        log_loss=_mean(-(debiased * np.log(by_class)).sum(axis=1)),
        accuracy=_mean(hit),
        squared_calibration_error=_squared_calibration_error(reliability),
        reliability=reliability,
    )


def debiased_labels(mechanism: Mechanism, draws: Sequence[npt.NDArray[Any]]) -> Floats:
    """Return t̂ of each record and class (`[n, k]`), the mean of all draws: `E[t̂_j] = 1` for the true class, else 0."""
    values = mechanism.unbiased_values.astype(np.float32)  # as in training (`LogitGradient.evidence`)
    estimate: Floats = np.mean([values[outcomes].astype(np.float64) for outcomes in draws], axis=0)
    return np.stack([1 - estimate, estimate], axis=1) if estimate.ndim == 1 else estimate


def record_log_likelihoods(
    mechanism: Mechanism, draws: Sequence[npt.NDArray[Any]], probabilities: npt.NDArray[np.floating]
) -> Floats:
    """Return `ln Σ_j P(t_i|j)·p_ij` of each record, over all draws: what its noisy label says of the prediction."""
    likelihood = np.sum([mechanism.log_likelihood(outcomes) for outcomes in draws], axis=0)
    found: Floats = np.logaddexp.reduce(likelihood + np.log(clipped(probabilities)[1]), axis=1)
    return found


def clipped(probabilities: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Return probabilities a little away from 0 and 1: as they came, and with a column for each class."""
    p = np.clip(np.asarray(probabilities, dtype=np.float64), _SMALLEST, 1 - _SMALLEST)
    return p, np.stack([1 - p, p], axis=1) if p.ndim == 1 else p


def noisy_auc(scores: npt.NDArray[np.floating], debiased: Floats) -> Estimate:
    """Return the corrected AUC of two classes; NaN where noise hides how many records of a class there are."""
    if not _is_seen(debiased):
        return _drowned(1)
    return Estimate(*corrected_auc(scores, debiased))


def _is_seen(debiased: Floats) -> bool:
    """Whether noisy labels say for certain that there are records of a class, and others: a ratio needs both."""
    size = Spread()
    for block in blocks(len(debiased)):
        size.add(debiased[block])
    # Not for a single record, whose variance is not known.
    return size.count > 1 and min(size.mean, 1 - size.mean) > _CLEAR * math.sqrt(size.variance / size.count)


def corrected_auc(scores: npt.NDArray[np.floating], debiased: Floats) -> tuple[float, float]:
    """Return `Σ_{i≠j} t̂_i(1-t̂_j)·[s_i > s_j] / Σ_{i≠j} t̂_i(1-t̂_j)`, ties counted half, and its standard error.

    Noise of different records is independent, so above and below the line stand unbiased estimates of the same sums
    over true labels. For randomised response this is the AUC against flipped labels, corrected for the flips. NaN if
    the noise is so large that no positive pairs are seen. The standard error is that of `auc_with_parts`, in the memory
    of a few blocks of records.
    """
    positives = with_itself = 0.0
    for t in (debiased[block] for block in blocks(len(debiased))):
        positives, with_itself = positives + float(t.sum()), with_itself + float(t @ (1 - t))
    negatives = len(debiased) - positives
    pairs, won, squares = positives * negatives - with_itself, -with_itself / 2, 0.0
    if not pairs > 0:
        return math.nan, math.nan
    for _, negatives_below, _, sums in _levels(scores, debiased):
        won += float(sums[:, 0] @ negatives_below)
    area = won / pairs
    for here, negatives_below, positives_below, sums in _levels(scores, debiased):
        # A record's part in the AUC, times the pairs, is `start + slope·t̂ + bend·t̂²`; squares are summed by powers.
        start, bend = (1 - area) * positives - positives_below, 1 - 2 * area
        slope = negatives_below - area * negatives - start - bend
        by_power = [
            start**2,
            2 * start * slope,
            slope**2 + 2 * start * bend,
            2 * bend * slope,
            np.full(len(here), bend**2),
        ]
        squares += float((np.stack(by_power, axis=1) * np.column_stack([here, sums])).sum())
    return area, math.sqrt(squares) / pairs


def _levels(scores: npt.NDArray[np.floating], debiased: Floats) -> Iterator[tuple[Counts, Floats, Floats, Floats]]:
    """Yield the different scores in ascending order, piece by piece.

    Of each: how many records have it; the sums of 1-t̂ and of t̂ over the records below it, equal ones counted half; and
    the sums of t̂, t̂², t̂³ and t̂⁴ over the records that have it.
    """
    records = positives = 0.0
    powers = np.arange(1, 5)
    for _, here, sums in by_score(len(scores), lambda block: (scores[block], debiased[block, None] ** powers)):
        records_upto, positives_upto = records + here.cumsum(), positives + sums[:, 0].cumsum()
        positives_below = positives_upto - sums[:, 0] / 2
        yield here, records_upto - here / 2 - positives_below, positives_below, sums
        records, positives = float(records_upto[-1]), float(positives_upto[-1])


def auc_with_parts(scores: Floats, debiased: Floats) -> tuple[float, Floats]:
    """Return the corrected AUC, and what each record adds to it: what leaving it out would take away, to first order.

    With W and P the sums above and below the line, and w_i, p_i the terms in them that have record i, its part is
    `(w_i - AUC·p_i) / P`. Parts add up to 0; the sum of their squares estimates the variance of the AUC.
    """
    order = np.argsort(scores, kind="stable")
    ranked, positive, negative = scores[order], debiased[order], 1 - debiased[order]
    first, last = np.searchsorted(ranked, ranked, "left"), np.searchsorted(ranked, ranked, "right")

    def below(weights: Floats) -> Floats:
        """The weights of the records below each one, equal ones and the record itself counted half."""
        total = np.concatenate([[0.0], np.cumsum(weights)])
        mean: Floats = (total[first] + total[last]) / 2
        return mean

    won = positive * (below(negative) - negative / 2)
    lost = negative * (positive.sum() - below(positive) - positive / 2)
    of_positive, of_negative = positive * (negative.sum() - negative), negative * (positive.sum() - positive)
    pairs = of_positive.sum()
    area = float(won.sum() / pairs) if pairs > 0 else math.nan
    parts = np.empty_like(ranked)
    parts[order] = (won + lost - area * (of_positive + of_negative)) / pairs
    return area, parts


def _none(reason: str = "") -> Estimate:
    return Estimate(math.nan, math.nan, reason)


def _drowned(number: int) -> Estimate:
    return _none(f"noise hides how many records are of class {number}, and how many are not")


def _mean(values: Floats) -> Estimate:
    spread = Spread()
    spread.add(values)
    return Estimate.of_mean(spread)


def _mean_auc(by_class: Floats, debiased: Floats) -> Estimate:
    """The mean of the corrected AUCs of all classes, each against the rest.

    Its variance is that of the records' parts in it (the infinitesimal jackknife): to first order, leaving record i out
    changes the AUC by its part. NaN where noise hides how many records of a class there are.
    """
    areas, parts, classes = [], np.zeros(len(debiased)), by_class.shape[1]
    for j in range(classes):
        own = debiased[:, j]
        if not _is_seen(own):
            return _drowned(j)
        area, part = auc_with_parts(by_class[:, j], own)
        areas.append(area)
        parts += part / classes
    return Estimate(float(np.mean(areas)), float(np.sqrt((parts**2).sum())))


def _reliability(predicted: Floats, seen: Floats) -> tuple[ReliabilityBin, ...]:
    bin_of = rank_bins(predicted, _BINS)
    found = []
    for number in np.unique(bin_of):
        inside = bin_of == number
        observed = _mean(seen[inside])
        shown = float(predicted[inside].mean()), observed.value, observed.standard_error
        found.append(ReliabilityBin(int(inside.sum()), *shown))
    return tuple(found)


def _squared_calibration_error(bins: Sequence[ReliabilityBin]) -> Estimate:
    """`Σ_b n_b/n·(gap_b² - se_b²)`: the debiased estimator of Kumar, Liang and Ma (2019), with noisy labels.

    The square of an estimated gap is too large by its variance v, on average. Its absolute value (the usual expected
    calibration error) is too large as well, and there no correction is exact. The variance of the square is
    `4·gap²·v + 2v²`.
    """
    if any(math.isnan(one.standard_error) for one in bins):
        return _none("a bin has a single record, whose gap has no standard error")
    weights = np.array([one.records for one in bins]) / sum(one.records for one in bins)
    squares = np.array([(one.predicted - one.observed) ** 2 for one in bins])
    variances = np.array([one.standard_error**2 for one in bins])
    spread = np.maximum(4 * (squares - variances), 0) * variances + 2 * variances**2
    return Estimate(float(weights @ (squares - variances)), float(np.sqrt(weights**2 @ spread)))


def committee_weights(log_likelihoods: Sequence[npt.NDArray[np.floating]]) -> Floats:
    """Return a weight for each candidate, adding up to 1, from `ln P(t_i | candidate)` of each held-out record.

    Stacking of predictive distributions (Yao, Vehtari, Simpson and Gelman 2018), on noisy labels. The weights w
    maximise

        Σ_i ln Σ_c w_c·P(t_i | candidate c)  +  Σ_c ln w_c

    the likelihood of the noisy labels t_i under the mixture, with one made-up observation for every candidate. Where
    noisy labels cannot tell candidates apart, as at ε = 0.1, the second sum decides and the committee is nearly the
    plain mean; where they can, the first one does, and keeps those that complement each other. There is no constant to
    choose. A candidate with a number that is not finite counts nothing.
    """
    from scipy.optimize import minimize  # takes long to import
    from scipy.special import log_softmax, softmax

    rows = np.asarray(log_likelihoods, dtype=np.float64)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.any():
        raise ValueError("no candidate has a finite likelihood: all of them diverged")
    given = rows[finite]
    likelihood = np.exp(given - given.max(axis=0)).T  # of each record only ratios between candidates count

    def loss(logits: Floats) -> tuple[float, Floats]:
        w, mixed = softmax(logits), likelihood @ softmax(logits)
        by_weight = w * (likelihood / mixed[:, None]).sum(axis=0) + 1
        return -float(np.log(mixed).sum() + log_softmax(logits).sum()), by_weight.sum() * w - by_weight

    weights: Floats = np.zeros(len(rows))
    weights[finite] = softmax(minimize(loss, np.zeros(len(given)), jac=True).x)
    return weights
