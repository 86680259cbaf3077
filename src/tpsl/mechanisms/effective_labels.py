"""How many clean labels a release of noisy ones is worth.

The mean of n unbiased noisy labels has the variance `(v + s)/n`, where v is the variance of a clean label and s what
the noise adds: that of `n·v/(v + s)` clean ones. No learner that sees noisy labels alone has more to go on, so what it
reaches with that many clean labels is about what it can reach at all. For two classes and randomised response,
`v = p(1-p)` and `s = 1/(e^{ε/2} - e^{-ε/2})²`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpsl.mechanisms.base import Mechanism
from tpsl.mechanisms.kary import variance_of_unbiased
from tpsl.mechanisms.statistic_noise import StatisticNoise


def effective_labels(mechanism: Mechanism, counts: Sequence[int], draws: int = 1) -> float:
    """Return how many clean labels the noisy labels of all records are worth; `counts` are the records of each class.

    Variances are summed over the coordinates of the label's unit vector. Equal classes are worth most.
    """
    clean = _variance(counts)
    return sum(counts) * clean / (clean + variance_of_unbiased(mechanism) / draws) if clean else 0.0


def effective_labels_of_class(mechanism: Mechanism, counts: Sequence[int], number: int, draws: int = 1) -> float:
    """Return how many clean labels of one class the noisy labels of all records are worth.

    It is the share of the class in what `effective_labels` says of "this class or not"; of two classes that is all. The
    Fisher information of a logistic regression is proportional to it, so it decides what a learner can find out about
    a class, however rare or frequent the class is.
    """
    share = counts[number] / max(sum(counts), 1)
    clean, noise = share * (1 - share), variance_of_unbiased(mechanism) / (mechanism.classes * draws)
    return counts[number] * clean / (clean + noise) if clean else 0.0


def effective_labels_of_statistic(noise: StatisticNoise, bound: int, width: int, counts: Sequence[int]) -> float:
    """Return how many clean labels a noisy statistic is worth, if records use their bound and spread over its width.

    A coordinate of the sums then has the variance `h = n·v·e/k`, with e the mean square of a coordinate of a record,
    and the noise adds s: the sum is worth `n·h/(h + s)`. A map whose energy lies in few directions is worth more.
    """
    records = sum(counts)
    energy = bound**2 / (width if noise.norm == "l2" else width**2)
    information = records * _variance(counts) * energy / len(counts)
    return records * information / (information + noise.deviation**2) if information else 0.0


def _variance(counts: Sequence[int]) -> float:
    """Return the variance of a clean label, summed over the coordinates of its unit vector."""
    rates = [count / max(sum(counts), 1) for count in counts]
    return sum(rate * (1 - rate) for rate in rates)
