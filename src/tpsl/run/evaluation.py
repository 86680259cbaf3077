"""How good predictions are: by true labels of test records, and by noisy labels of held-out records.

`TestMetrics` depend on true labels, so they may not cross the border. Neither may the time that they take:
`tpsl.run.after_training` says when they are computed.

`Validation` is computed from noisy labels alone. With t̂ the debiased noisy label, `E[t̂_j] = 1` for the true class j and
0 for the others, the log loss has, on average over the noise, exactly the value that the same formula has on true
labels. The AUC is a ratio of two such estimates (Sun, Yang, Yao, Xie, Wu, Wang 2022, "Differentially Private AUC
Computation in Vertical Federated Learning", corrects the AUC for flipped labels alike). All of it is post-processing of
the release: it costs no ε beyond that of the noisy labels, and may be told to anybody. So the label party compares
epochs and configurations by these numbers alone, and what it decides (which weights to keep, when to stop,
`ensemble_weights`) may cross the border. Standard errors are those of noise and of the choice of records together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl import metrics
from tpsl.data.out_of_core import Rows, empty
from tpsl.data.rawtable import NO_LABEL
from tpsl.mechanisms import Mechanism
from tpsl.metrics import Spread, blocks, by_score, half_width
from tpsl.run.result import Measured

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_SMALLEST = 1e-7  # no prediction is taken to be surer than this
_CLEAR = 4.0
"""A class is seen if its estimated size is this many standard errors away from none; a ratio needs it."""
_WIDEST = 0.1
"""Half of the 95 % interval of an AUC that still says something."""
TOO_FEW = "too few noisy labels to estimate it"
"""Why a hold-out of two classes has no AUC."""


@dataclass(frozen=True)
class TestMetrics:
    """How good the network is on records it was not trained on."""

    __test__ = False

    test_auc: Measured
    """Two classes: AUC; k classes: the mean AUC of one class against the rest."""
    test_auc_low: Measured
    test_auc_high: Measured
    test_log_loss: Measured
    test_accuracy: Measured
    test_calibration_error: Measured


TEST_METRICS = tuple(field.name for field in fields(TestMetrics))


def evaluate(probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> TestMetrics:
    """Return the metrics; what does not exist (one class only, or a feature party alone knows no label) is NaN."""
    if not len(labels) or labels[0] == NO_LABEL:
        return TestMetrics(**dict.fromkeys(TEST_METRICS, math.nan))
    area = metrics.AUC(math.nan, math.nan, math.nan)
    if labels.min() < labels.max():
        area = (metrics.auc if probabilities.ndim == 1 else metrics.macro_auc)(probabilities, labels)
    return TestMetrics(
        test_auc=area.value,
        test_auc_low=area.low,
        test_auc_high=area.high,
        test_log_loss=metrics.log_loss(probabilities, labels),
        test_accuracy=metrics.accuracy(probabilities, labels),
        test_calibration_error=metrics.calibration_error(probabilities, labels),
    )


_CURVE_BINS = 10
TEST_CURVES = "test_curves.json"
"""The file's name, in the label party's folder of a run."""


@dataclass(frozen=True)
class TestCurves:
    """What true labels of test records say of the kept predictions besides `TestMetrics`; it stays with them."""

    __test__ = False

    records_by_class: tuple[int, ...]
    calibration: tuple[tuple[int, float, float], ...]
    """Of equally filled bins: records, mean prediction, observed rate (of k classes: largest prediction, accuracy)."""
    precision_recall: tuple[tuple[float, float], ...]
    """Recall and precision of class 1; empty for more than two classes, or where all labels are of one."""

    @classmethod
    def of(cls, probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], classes: int) -> TestCurves:
        """Return the curves of predictions whose labels are known."""
        counts = np.bincount(labels, minlength=classes)
        bins = zip(*metrics.calibration_bins(probabilities, labels, _CURVE_BINS), strict=True)
        two = probabilities.ndim == 1 and counts.min() > 0
        return cls(
            tuple(map(int, counts)),
            tuple((int(count), float(p / count), float(hits / count)) for count, p, hits in bins if count),
            tuple(metrics.precision_recall(probabilities, labels == 1)) if two else (),
        )


@dataclass(frozen=True)
class Validation:
    """What noisy labels say of a prediction."""

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
        losses.add(-(debiased * np.log(clipped(probabilities[block]))).sum(axis=1))
        likelihood += float(record_log_likelihoods(mechanism, outcomes, probabilities[block]).sum())
        if two:
            estimates[block] = debiased[:, 1]
    area, error = corrected_auc(probabilities, estimates) if two else (math.nan, math.nan)
    margin = half_width(error)
    area = area if margin <= _WIDEST else math.nan  # a margin that is NaN is not
    return Validation(losses.mean, _standard_error(losses), likelihood, area, area - margin, area + margin)


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
    found: Floats = np.logaddexp.reduce(likelihood + np.log(clipped(probabilities)), axis=1)
    return found


def clipped(probabilities: npt.NDArray[np.floating]) -> Floats:
    """Return probabilities a little away from 0 and 1, with a column for each class."""
    p: Floats = np.clip(np.asarray(probabilities, dtype=np.float64), _SMALLEST, 1 - _SMALLEST)
    return np.stack([1 - p, p], axis=1) if p.ndim == 1 else p


def _standard_error(values: Spread) -> float:
    """Return the standard error of the mean of numbers; a single one has none."""
    return math.sqrt(values.variance / values.count) if values.count > 1 else math.nan


def corrected_auc(scores: npt.NDArray[np.floating], debiased: Floats) -> tuple[float, float]:
    """Return `Σ_{i≠j} t̂_i(1-t̂_j)·[s_i > s_j] / Σ_{i≠j} t̂_i(1-t̂_j)`, ties counted half, and its standard error.

    Noise of different records is independent, so above and below the line stand unbiased estimates of the same sums
    over true labels. For randomised response this is the AUC against flipped labels, corrected for the flips. NaN where
    noise hides whether there are records of both classes. With W and P the sums above and below the line, and w_i, p_i
    the terms in them that have record i, its part in the AUC is `(w_i - AUC·p_i) / P`: what leaving it out would take
    away, to first order. The sum of their squares estimates the variance. Memory is that of a few blocks of records.
    """
    size = Spread()
    for block in blocks(len(debiased)):
        size.add(debiased[block])
    # Not for a single record, whose variance is not known; a ratio needs both classes.
    if not min(size.mean, 1 - size.mean) > _CLEAR * _standard_error(size):
        return math.nan, math.nan
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


def ensemble_weights(log_likelihoods: Sequence[npt.NDArray[np.floating]]) -> Floats:
    """Return a weight for each candidate, adding up to 1, from `ln P(t_i | candidate)` of each held-out record.

    Stacking of predictive distributions (Yao, Vehtari, Simpson and Gelman 2018), on noisy labels. The weights w
    maximise

        Σ_i ln Σ_c w_c·P(t_i | candidate c)  +  Σ_c ln w_c

    the likelihood of the noisy labels t_i under the mixture, with one made-up observation for every candidate. Where
    noisy labels cannot tell candidates apart, as at ε = 0.1, the second sum decides and the ensemble is nearly the
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
