"""What a learner is told of labels: the likelihood and the unbiased estimate of each, from noisy labels.

Any learner may work on noisy labels with the likelihood `P(t | x) = Σ_y P(t | y)·p_y(x)`: it is post-processing of the
release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism
from tpsl.mechanisms.effective_labels import effective_labels
from tpsl.training.noisy_metrics import debiased_labels

Floats = npt.NDArray[np.float64]

_SMALLEST_SHARE = 1e-3


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


def mixture_log_likelihoods(log_likelihood: Floats, log_probabilities: Floats) -> Floats:
    """Return `ln Σ_j P(t | j)·p_j(x)` of each record, from `ln P(t | j)` and `ln p_j(x)`."""
    return _log_sum(log_likelihood + log_probabilities)[:, 0]


def posterior(log_likelihood: Floats, log_probabilities: Floats) -> Floats:
    """Return `P(y = j | t, x) ∝ P(t | j)·p_j(x)`; of noise-free labels, the label itself."""
    joint = log_likelihood + log_probabilities
    found: Floats = np.exp(joint - _log_sum(joint))
    return found


def log_softmax(scores: Floats) -> Floats:
    """Return the logarithm of the softmax of each row."""
    return scores - _log_sum(scores)


def _log_sum(rows: Floats) -> Floats:
    """Return the logarithm of the sum of the exponentials of each row, shape `[n, 1]`."""
    columns = np.ascontiguousarray(rows.T)  # numpy is slow at sums over rows of two
    largest = columns.max(axis=0)
    found: Floats = largest + np.log(np.exp(columns - largest).sum(axis=0))
    return found[:, None]
