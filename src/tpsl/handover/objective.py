"""The likelihood of noisy labels as an objective for gradient boosting: LightGBM, XGBoost.

The loss of a record is `-ln Σ_y P(t | y)·p_y(x)`. With k logits z, `p = softmax(z)` and `q_j = P(y = j | t, x)`, its
gradient is `p - q`: the `posterior` estimator of `tpsl.perturb`. Its Hessian `p(1-p) - q(1-q)` is negative for many
records, and a leaf's step divides by the sum of them. So the Fisher information takes its place, the expectation of the
Hessian over outcomes:

    F_j = p_j²·(Σ_o P(o | j)² / P(o | x) - 1),    P(o | x) = Σ_y P(o | y)·p_y

It is positive, `p(1-p)` without noise, and small where noise leaves little of a label. A sum of it over records counts
in clean labels: the least Hessian of a leaf and the penalty of its value mean the same at every ε.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from tpsl.handover.noisy_targets import Floats, NoisyTargets, log_softmax, mixture_log_likelihoods, posterior
from tpsl.mechanisms import Mechanism

_MOST_OUTCOMES = 256
"""A larger table, or an outcome of several coordinates, has its information estimated from the records."""
_LEAST_HESSIAN = 1e-12
_LEAST_PROBABILITY = 1e-15


class NoisyLabelObjective:
    """Loss, gradient and Hessian of the likelihood of noisy labels, at raw scores of the same records.

    Raw scores have shape `[n]` for two classes, the log-odds of class 1, and `[n, k]` for k.
    """

    def __init__(self, targets: NoisyTargets) -> None:
        self.targets = targets
        self._log_likelihood = targets.log_likelihood()
        self._table = _table(targets.mechanism) if len(targets.draws) == 1 else None

    def log_likelihoods(self, scores: npt.NDArray[np.floating]) -> Floats:
        """Return `ln P(t_i | x_i)` of each record."""
        return mixture_log_likelihoods(self._log_likelihood, log_probabilities(scores))

    def gradient_and_hessian(self, scores: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
        """Return the derivative of the loss by each score, and its Fisher information; both shaped as the scores."""
        if scores.ndim == 1 and self._table is not None:
            return self._of_log_odds(np.asarray(scores, dtype=np.float64), self._table)
        log_p = log_probabilities(scores)
        p = np.exp(log_p)
        gradient = p - posterior(self._log_likelihood, log_p)
        hessian = np.maximum(self._information(p, gradient), _LEAST_HESSIAN)
        if scores.ndim == 1:
            return gradient[:, 1], hessian[:, 1]
        # As LightGBM does without noise (Friedman 2001): the softmax has one degree of freedom fewer than scores.
        return gradient, hessian * (p.shape[1] / (p.shape[1] - 1))

    def __call__(self, scores: npt.NDArray[np.floating], _: Any = None) -> tuple[Floats, Floats]:
        """Return both: as `lightgbm.train(params={"objective": …})` and `xgboost.train(obj=…)` call an objective."""
        return self.gradient_and_hessian(scores)

    def _of_log_odds(self, z: Floats, table: Floats) -> tuple[Floats, Floats]:
        """Return the same of two classes and a small table, in a fifth of the time: every tree of boosting asks."""
        p = expit(z)
        q = expit(z + self._log_likelihood[:, 1] - self._log_likelihood[:, 0])
        information = np.full(len(z), -1.0)
        for negative, positive in table.T:
            information += positive**2 / np.maximum(negative + (positive - negative) * p, _LEAST_PROBABILITY)
        return p - q, np.maximum(p * p * information, _LEAST_HESSIAN)

    def _information(self, p: Floats, gradient: Floats) -> Floats:
        whole = p * (1 - p)
        if self._table is None:
            # Of what clean labels would say, the share that the squared gradients leave: its expectation is exact.
            return whole * min(1.0, float(np.square(gradient).sum() / max(float(whole.sum()), _LEAST_HESSIAN)))
        seen = np.maximum(p @ self._table, _LEAST_PROBABILITY)
        left: Floats = np.square(p) * ((1 / seen) @ np.square(self._table).T - 1)
        return left


def log_probabilities(scores: npt.NDArray[np.floating]) -> Floats:
    """Return `ln p_j` in column j, from log-odds `[n]` of class 1 or from k scores `[n, k]`."""
    z = np.asarray(scores, dtype=np.float64)
    return log_softmax(np.stack([np.zeros(len(z)), z], axis=1) if z.ndim == 1 else z)


def _table(mechanism: Mechanism) -> Floats | None:
    """Return `P(o | y)`, a row for each class; None where that would be large."""
    if mechanism.outcome_shape or mechanism.outcomes > _MOST_OUTCOMES or len(mechanism.weights) != mechanism.classes:
        return None
    weights = mechanism.weights.astype(np.float64)
    table: Floats = weights / weights.sum(axis=1, keepdims=True)
    return table
