"""How good predictions are, from noisy labels alone: AUC, log loss, accuracy and calibration, with standard errors.

With t̂ the debiased noisy label, `E[t̂_j] = 1` for the true class j and 0 for the others. Log loss, accuracy, the rates
of the reliability bins and the squared calibration error have, on average over the noise, exactly the value that the
same formula has on true labels. The AUC is a ratio of two such estimates (Sun, Yang, Yao, Xie, Wu, Wang 2022,
"Differentially Private AUC Computation in Vertical Federated Learning", corrects the AUC for flipped labels alike).

All of it is post-processing of the release: it costs no ε beyond that of the noisy labels, and may be told to anybody.
Standard errors are those of noise and of the choice of records together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism
from tpsl.metrics import rank_bins
from tpsl.training.validation import (
    Estimate,
    Measured,
    auc_with_parts,
    clipped,
    debiased_labels,
    hidden,
    is_seen,
    noisy_auc,
)

Floats = npt.NDArray[np.float64]
_BINS = 10


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


def _mean(values: Floats) -> Estimate:
    if len(values) < 2:
        return Estimate(float(values.mean()), math.nan)
    return Estimate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def _mean_auc(by_class: Floats, debiased: Floats) -> Estimate:
    """The mean of the corrected AUCs of all classes, each against the rest.

    Its variance is that of the records' parts in it (the infinitesimal jackknife): to first order, leaving record i out
    changes the AUC by its part. NaN where noise hides how many records of a class there are.
    """
    areas, parts, classes = [], np.zeros(len(debiased)), by_class.shape[1]
    for j in range(classes):
        own = debiased[:, j]
        if not is_seen(own):
            return Estimate(math.nan, math.nan, hidden(j))
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
        found.append(
            ReliabilityBin(int(inside.sum()), float(predicted[inside].mean()), observed.value, observed.standard_error)
        )
    return tuple(found)


def _squared_calibration_error(bins: Sequence[ReliabilityBin]) -> Estimate:
    """`Σ_b n_b/n·(gap_b² - se_b²)`: the debiased estimator of Kumar, Liang and Ma (2019), with noisy labels.

    The square of an estimated gap is too large by its variance v, on average. Its absolute value (the usual expected
    calibration error) is too large as well, and there no correction is exact. The variance of the square is
    `4·gap²·v + 2v²`.
    """
    if any(math.isnan(one.standard_error) for one in bins):
        return Estimate(math.nan, math.nan, "a bin has a single record, whose gap has no standard error")
    weights = np.array([one.records for one in bins]) / sum(one.records for one in bins)
    squares = np.array([(one.predicted - one.observed) ** 2 for one in bins])
    variances = np.array([one.standard_error**2 for one in bins])
    spread = np.maximum(4 * (squares - variances), 0) * variances + 2 * variances**2
    return Estimate(float(weights @ (squares - variances)), float(np.sqrt(weights**2 @ spread)))
