"""What noisy labels of held-out records say of a prediction: free of charge, because they are released already.

The label party compares epochs and configurations by these numbers alone, so that what it decides (which weights to
keep, when to stop) is post-processing of the release and may cross the border.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism
from tpsl.perturb import LogitGradient

Floats = npt.NDArray[np.float64]
_SMALLEST = 1e-7  # no prediction is taken to be surer than this


@dataclass(frozen=True)
class Validation:
    """A prediction judged by noisy labels."""

    validation_loss: float
    """Unbiased estimate of the log loss against the true labels, which nobody looked at."""
    validation_loss_se: float
    """Its standard error."""
    validation_log_likelihood: float
    """`Σ_i ln P(t_i | prediction)`, over all held-out records and draws: what candidates are compared by."""
    validation_auc: float
    """Estimate of the AUC against the true labels, corrected for the noise; NaN for more than two classes."""


def noisy_validation(
    mechanism: Mechanism, draws: Sequence[npt.NDArray[Any]], probabilities: npt.NDArray[np.floating]
) -> Validation:
    """Return what the outcomes of a mechanism say of probabilities, of class 1 (`[n]`) or of each class (`[n, k]`).

    With t̂ the debiased noisy label, `E[t̂_j] = 1` for the true class j and 0 for the others, the loss is the mean of
    `-Σ_j t̂_j ln p_j`. The log-likelihood is `ln Σ_j P(t|j)·p_j`: its expectation is greatest for the true
    probabilities, too, and it varies less.
    """
    p, by_class = _clipped(probabilities)
    debiased = np.zeros_like(by_class)
    unbiased = LogitGradient(mechanism, "unbiased")
    for outcomes in draws:
        estimate = unbiased.evidence(outcomes).numpy().astype(np.float64)
        debiased += np.stack([1 - estimate, estimate], axis=1) if estimate.ndim == 1 else estimate
    debiased /= len(draws)
    losses = -(debiased * np.log(by_class)).sum(axis=1)
    return Validation(
        validation_loss=float(losses.mean()),
        validation_loss_se=float(losses.std(ddof=1) / math.sqrt(len(losses))) if len(losses) > 1 else math.nan,
        validation_log_likelihood=float(record_log_likelihoods(mechanism, draws, p).sum()),
        validation_auc=corrected_auc(p, debiased[:, 1]) if p.ndim == 1 else math.nan,
    )


def record_log_likelihoods(
    mechanism: Mechanism, draws: Sequence[npt.NDArray[Any]], probabilities: npt.NDArray[np.floating]
) -> Floats:
    """Return `ln Σ_j P(t_i|j)·p_ij` of each record, over all draws: what its noisy label says of the prediction."""
    likelihood = np.sum([mechanism.log_likelihood(outcomes) for outcomes in draws], axis=0)
    found: Floats = np.logaddexp.reduce(likelihood + np.log(_clipped(probabilities)[1]), axis=1)
    return found


def _clipped(probabilities: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Return probabilities a little away from 0 and 1: as they came, and with a column for each class."""
    p = np.clip(np.asarray(probabilities, dtype=np.float64), _SMALLEST, 1 - _SMALLEST)
    return p, np.stack([1 - p, p], axis=1) if p.ndim == 1 else p


def corrected_auc(scores: Floats, debiased: Floats) -> float:
    """Return `Σ_{i≠j} t̂_i(1-t̂_j)·[s_i > s_j] / Σ_{i≠j} t̂_i(1-t̂_j)`, ties counted half.

    Noise of different records is independent, so above and below the line stand unbiased estimates of the same sums
    over true labels. For randomised response this is the AUC against flipped labels, corrected for the flips. NaN if
    the noise is so large that no positive pairs are seen.
    """
    order = np.argsort(scores, kind="stable")
    ranked, positive, negative = scores[order], debiased[order], 1 - debiased[order]
    first, last = np.searchsorted(ranked, ranked, "left"), np.searchsorted(ranked, ranked, "right")
    below = np.concatenate([[0.0], np.cumsum(negative)])
    own = positive * negative
    beaten = (positive * (below[first] + below[last]) / 2).sum() - own.sum() / 2
    pairs = positive.sum() * negative.sum() - own.sum()
    return float(beaten / pairs) if pairs > 0 else math.nan
