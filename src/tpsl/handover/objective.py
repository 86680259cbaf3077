"""What a learner is told of labels: the likelihood and the unbiased estimate of each, and an objective for boosting.

Any learner may work on noisy labels with the likelihood `P(t | x) = Σ_y P(t | y)·p_y(x)`: it is post-processing of the
release. The loss of a record is `-ln P(t | x)`. With k logits z, `p = softmax(z)` and `q_j = P(y = j | t, x)`, its
gradient is `p - q`: the `posterior` estimator of `tpsl.perturb`. Its Hessian `p(1-p) - q(1-q)` is negative for many
records, and a leaf's step divides by the sum of them. So the Fisher information takes its place, the expectation of the
Hessian over outcomes:

    F_j = p_j²·(Σ_o P(o | j)² / P(o | x) - 1),    P(o | x) = Σ_y P(o | y)·p_y

It is positive, `p(1-p)` without noise, and small where noise leaves little of a label. A sum of it over records counts
in clean labels: the least Hessian of a leaf and the penalty of its value mean the same at every ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from tpsl.mechanisms import Mechanism
from tpsl.mechanisms.effective_labels import effective_labels
from tpsl.run.evaluation import debiased_labels

Floats = npt.NDArray[np.float64]

_SMALLEST_SHARE = 1e-3
_MOST_OUTCOMES = 256
"""A larger table, or an outcome of several coordinates, has its information estimated from the records."""
_LEAST_HESSIAN = 1e-12
_LEAST_PROBABILITY = 1e-15


@dataclass(frozen=True)
class NoisyTargets:
    """What noisy labels say of the labels of some records."""

    mechanism: Mechanism
    draws: tuple[npt.NDArray[Any], ...]
    """The outcomes of all records, for each independent draw."""

    def __post_init__(self) -> None:
        if not self.draws or len({len(outcomes) for outcomes in self.draws}) > 1:
            raise ValueError(f"noisy labels need one outcome of each record and draw, got {len(self.draws)} draws")

    def __len__(self) -> int:
        return len(self.draws[0])

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.mechanism.classes

    def take(self, rows: npt.NDArray[Any]) -> NoisyTargets:
        """Return what is said of these records (positions or a mask), in that order."""
        return NoisyTargets(self.mechanism, tuple(outcomes[rows] for outcomes in self.draws))

    def log_likelihood(self) -> Floats:
        """Return `ln P(t | y = j)` in column j, over all draws of a record; shape `[n, k]`."""
        found: Floats = np.sum([self.mechanism.log_likelihood(outcomes) for outcomes in self.draws], axis=0)
        return found

    def unbiased(self) -> Floats:
        """Return the debiased labels, shape `[n, k]`: their expectation is 1 for the true class, 0 for the others."""
        return debiased_labels(self.mechanism, self.draws)

    def class_shares(self) -> Floats:
        """Return the estimated share of each class, none below a thousandth: the prediction for an unknown record."""
        shares = np.clip(self.unbiased().mean(axis=0), _SMALLEST_SHARE, 1.0)
        found: Floats = shares / shares.sum()
        return found

    def base_scores(self) -> Floats:
        """Return what is predicted for an unknown record: the log-odds of class 1, `[1]`, or a score a class, `[k]`."""
        shares = np.log(self.class_shares())
        return shares[1:] - shares[:1] if len(shares) == 2 else shares

    def effective_labels(self) -> float:
        """Return about how many clean labels these are worth: what any learner has to go on."""
        counts = [round(share * len(self)) for share in self.class_shares()]
        return effective_labels(self.mechanism, counts, len(self.draws))


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


def mixture_log_likelihoods(log_likelihood: Floats, log_probabilities: Floats) -> Floats:
    """Return `ln Σ_j P(t | j)·p_j(x)` of each record, from `ln P(t | j)` and `ln p_j(x)`."""
    return _log_sum(log_likelihood + log_probabilities)[:, 0]


def posterior(log_likelihood: Floats, log_probabilities: Floats) -> Floats:
    """Return `P(y = j | t, x) ∝ P(t | j)·p_j(x)`; of noise-free labels, the label itself."""
    joint = log_likelihood + log_probabilities
    found: Floats = np.exp(joint - _log_sum(joint))
    return found


def log_probabilities(scores: npt.NDArray[np.floating]) -> Floats:
    """Return `ln p_j` in column j, from log-odds `[n]` of class 1 or from k scores `[n, k]`."""
    z = np.asarray(scores, dtype=np.float64)
    by_class = np.stack([np.zeros(len(z)), z], axis=1) if z.ndim == 1 else z
    return by_class - _log_sum(by_class)


def as_probabilities(log_odds: Floats) -> npt.NDArray[np.float32]:
    """Return the probability of class 1 (`[n]`), or of each class (`[n, k]`), of log-odds of the same shape."""
    by_class = np.exp(log_probabilities(log_odds)).astype(np.float32)
    return by_class[:, 1] if log_odds.ndim == 1 else by_class


def _log_sum(rows: Floats) -> Floats:
    """Return the logarithm of the sum of the exponentials of each row, shape `[n, 1]`."""
    columns = np.ascontiguousarray(rows.T)  # numpy is slow at sums over rows of two
    largest = columns.max(axis=0)
    found: Floats = largest + np.log(np.exp(columns - largest).sum(axis=0))
    return found[:, None]


def _table(mechanism: Mechanism) -> Floats | None:
    """Return `P(o | y)`, a row for each class; None where that would be large."""
    if mechanism.outcome_shape or mechanism.outcomes > _MOST_OUTCOMES or len(mechanism.weights) != mechanism.classes:
        return None
    weights = mechanism.weights.astype(np.float64)
    table: Floats = weights / weights.sum(axis=1, keepdims=True)
    return table
