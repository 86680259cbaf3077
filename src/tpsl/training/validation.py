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

from tpsl.data.long_columns import Rows, empty
from tpsl.mechanisms import Mechanism
from tpsl.metrics import Spread, blocks, by_score
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
    return Validation(
        validation_loss=losses.mean,
        validation_loss_se=math.sqrt(losses.variance / losses.count) if losses.count > 1 else math.nan,
        validation_log_likelihood=likelihood,
        validation_auc=corrected_auc(probabilities, estimates) if two else math.nan,
    )


def debiased_labels(mechanism: Mechanism, draws: Sequence[npt.NDArray[Any]]) -> Floats:
    """Return t̂ of each record and class (`[n, k]`), the mean of all draws: `E[t̂_j] = 1` for the true class, else 0."""
    unbiased = LogitGradient(mechanism, "unbiased")
    estimate: Floats = np.mean([unbiased.evidence(outcomes).numpy().astype(np.float64) for outcomes in draws], axis=0)
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


def corrected_auc(scores: npt.NDArray[np.floating], debiased: Floats) -> float:
    """Return `Σ_{i≠j} t̂_i(1-t̂_j)·[s_i > s_j] / Σ_{i≠j} t̂_i(1-t̂_j)`, ties counted half.

    Noise of different records is independent, so above and below the line stand unbiased estimates of the same sums
    over true labels. For randomised response this is the AUC against flipped labels, corrected for the flips. NaN if
    the noise is so large that no positive pairs are seen.
    """
    with_itself = sum(float(t @ (1 - t)) for t in (debiased[block] for block in blocks(len(debiased))))
    won = positives = negatives = 0.0
    for _, here, positive in by_score(len(scores), lambda block: (scores[block], debiased[block])):
        negative = here - positive
        won += float(positive @ (negatives + negative.cumsum() - negative / 2))
        positives, negatives = positives + float(positive.sum()), negatives + float(negative.sum())
    pairs = positives * negatives - with_itself
    return (won - with_itself / 2) / pairs if pairs > 0 else math.nan


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
