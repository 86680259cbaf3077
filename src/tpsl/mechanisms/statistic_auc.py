"""What an attack on a noisy statistic can reach: the AUCs that follow from the noise alone.

The strongest attacker knows every label but one, and so the statistic but for `y_i q_i` and the noise. It is strongest
where q_i has all of its norm in one coordinate, which a malicious feature party can arrange: then it asks whether noise
or noise plus the bound was seen (two classes), or to which of two coordinates the bound was added (k classes, two given
ones). An honest q_i that is shorter, or for Laplace noise spread over coordinates, tells less.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.auc_prediction import PredictedAUC, auc_ceiling, auc_of_scores
from tpsl.mechanisms.cost import Cost, compose, epsilon_of_rho
from tpsl.mechanisms.mechanism import check_classes
from tpsl.mechanisms.statistic_noise import DiscreteGaussian, DiscreteLaplace, StatisticNoise

Floats = npt.NDArray[np.float64]

_DELTAS = [10.0**-digits for digits in range(1, 13)]
"""Where a ρ is stated as (ε, δ), to find the lowest ceiling."""
_SMALL_VARIANCE = 64
"""From here on sums of discrete Gaussians are discrete Gaussians to the last bit of a float (Poisson summation)."""


def predicted_statistic_auc(noise: StatisticNoise, bound: int, classes: int, releases: int = 1) -> PredictedAUC:
    """Return the AUCs of the attacker who knows all labels but one, whose row is `bound` in one coordinate.

    Of two `releases` it is so in each, and their noise is independent: logarithms of likelihood ratios add up.
    """
    read = releases * (1 if check_classes(classes) == 2 else 2)  # coordinates with the bound or without it
    if isinstance(noise, DiscreteGaussian):
        # A guess compares the noise with half of what was added; a comparison of two records has twice the noise.
        likelier, best = (_at_most(terms * bound, noise.variance, terms) for terms in (read, 2 * read))
    elif isinstance(noise, DiscreteLaplace):
        likelier, best = _of_laplace(noise.scale, bound, read)
    else:
        likelier, best = 1.0, 1.0
    return PredictedAUC(likelier, likelier, best, statistic_ceiling(compose([noise.cost(bound, classes)] * releases)))


def statistic_ceiling(cost: Cost) -> float:
    """Return the largest AUC of any attack on releases of this cost.

    Where a ρ is known, (ε, δ) holds for every δ at once: the lowest of their ceilings counts.
    """
    stated = [(cost.epsilon, cost.delta)]
    if cost.rho is not None:
        stated += [(epsilon_of_rho(cost.rho, delta), delta) for delta in _DELTAS]
    return min(auc_ceiling(epsilon, delta) for epsilon, delta in stated)


def _at_most(halves: int, variance: int, terms: int) -> float:
    """Return `P(N < h/2) + ½ P(N = h/2)` for N the sum of 1, 2, 4 or 8 independent discrete Gaussians.

    By symmetry it is `½ + ½ P(|N| < h/2) + ½ P(N = h/2)`.
    """
    if variance < _SMALL_VARIANCE:
        reach = 40 * math.isqrt(variance) + 40
        mass = np.exp(-(np.arange(-reach, reach + 1, dtype=np.float64) ** 2) / (2 * variance))
        mass /= mass.sum()
        for _ in range(terms.bit_length() - 1):
            mass = np.convolve(mass, mass)
        mass = mass[len(mass) // 2 :]
    else:
        n = np.arange(halves // 2 + 1, dtype=np.float64)
        mass = np.exp(-(n**2) / (2 * terms * variance)) / math.sqrt(2 * math.pi * terms * variance)
    within = mass[: (halves + 1) // 2]
    on_the_edge = mass[halves // 2 : halves // 2 + 1].sum() if halves % 2 == 0 else 0.0
    return float(0.5 + (2 * within.sum() - mass[0]) / 2 + on_the_edge / 2)


def _of_laplace(scale: int, bound: int, read: int) -> tuple[float, float]:
    """Return the AUCs of the likelier class and of the likelihood ratio.

    The ratio of `P(t - bound)` and `P(t)` grows with t from 0 to the bound and is constant beyond, so the outcomes on
    either side count as one. Where several coordinates are `read`, the logarithms of their ratios are added, or
    subtracted where the other class has the bound.
    """
    t = np.arange(bound + 1, dtype=np.float64)
    other: Floats = -np.expm1(-1 / scale) * np.exp(-t / scale) / (1 + math.exp(-1 / scale))
    other[0], other[-1] = 1 / (1 + math.exp(-1 / scale)), math.exp(-bound / scale) / (1 + math.exp(-1 / scale))
    own = other[::-1]
    if read > 1:
        length = read * bound + 1
        own = np.maximum(np.fft.irfft(np.fft.rfft(own, 2 * length) ** read, 2 * length)[:length], 0.0)
        other = own[::-1]
    likelier = (1.0 + float(np.maximum(own - other, 0.0).sum())) / 2
    return likelier, auc_of_scores(own, other, np.arange(len(own), dtype=np.float64))
