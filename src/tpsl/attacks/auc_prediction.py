"""AUCs of attacks on a noisy label or a noisy statistic, computed from the mechanism alone.

*Noisy label.* They hold for any attack whose score depends on the noisy label alone; one that also uses what features
say about the label can have more (`tpsl.attacks.with_features`). For more than two classes they speak about telling one
given class from another given class.

*Noisy statistic.* The strongest attacker knows every label but one, and so the statistic but for `y_i q_i` and the
noise. It is strongest where q_i has all of its norm in one coordinate, which a malicious feature party can arrange:
then it asks whether noise or noise plus the bound was seen (two classes), or to which of two coordinates the bound was
added (k classes, two given ones). A q_i that is shorter, or for Laplace noise spread over coordinates, tells less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import (
    Cost,
    DiscreteGaussian,
    DiscreteLaplace,
    Mechanism,
    StatisticNoise,
    compose,
    epsilon_of_rho,
)
from tpsl.mechanisms.base import check_classes

Floats = npt.NDArray[np.float64]

_CERTAIN = 1000.0
"""Stands for an infinite log-likelihood ratio."""
_LEVELS = 1000
"""How finely the likelihood ratios of one coordinate, on either side of 1, are told apart to compare pairs of them."""
_DELTAS = [10.0**-digits for digits in range(1, 13)]
"""Where a ρ is stated as (ε, δ), to find the lowest ceiling."""
_SMALL_VARIANCE = 64
"""From here on sums of discrete Gaussians are discrete Gaussians to the last bit of a float (Poisson summation)."""


@dataclass(frozen=True)
class PredictedAUC:
    """Attack AUCs computed from the table of a mechanism."""

    shortest_distance: float
    """The paper's shortest-distance attack with its hard guess (section 3.1); a coin where both are equally near."""
    likelier_class: float
    """The hard guess of the class under which the noisy label is likelier; a coin where both are equally likely.

    It differs from `shortest_distance` for k classes with noise on each coordinate: far out, a coordinate can grow
    without becoming likelier.
    """
    best_score: float
    """The likelihood ratio as a score: no attack on the noisy label alone has a larger expected AUC."""
    ceiling: float
    """What (ε, δ) alone allows, whatever the mechanism; `e^ε / (1 + e^ε)` for δ = 0."""


def auc_ceiling(epsilon: float, delta: float = 0.0) -> float:
    """Return the largest AUC that any attack on an (ε, δ)-DP release of one label can have.

    The ROC curve lies below `min(1, δ + e^ε f, 1 - e^-ε (1 - δ - f))` (Kairouz, Oh, Viswanath 2015); this is the
    area below.
    """
    if math.isinf(epsilon):
        return 1.0
    corner = (1.0 - delta) * (math.exp(-epsilon) / (1.0 + math.exp(-epsilon)))
    return corner * (1.0 + delta - corner) / 2 + (2.0 - corner) * (1.0 - delta - corner) / 2 + delta


def auc_of_scores(if_positive: Floats, if_negative: Floats, scores: Floats) -> float:
    """Return `P(score of a positive > score of a negative) + ½ P(equal)` for outcomes with these probabilities.

    Scores that differ by less than 1e-9 count as equal: the integers of a table wobble around one likelihood ratio.
    """
    order = np.argsort(scores)
    ordered = scores[order]
    new_group = np.concatenate([[True], np.diff(ordered) > 1e-9])
    group = np.cumsum(new_group) - 1
    positive = np.bincount(group, weights=if_positive[order])
    negative = np.bincount(group, weights=if_negative[order])
    below = np.concatenate([[0.0], np.cumsum(negative)[:-1]])
    return float(np.sum(positive * (below + negative / 2)))


def predicted_auc(mechanism: Mechanism) -> PredictedAUC:
    """Return the attack AUCs that follow from the integers of a mechanism.

    For a user's table with k classes they are the mean over all pairs of classes; every other mechanism treats its
    classes alike.
    """
    ceiling = auc_ceiling(mechanism.epsilon, mechanism.delta)
    pairs = mechanism.pairs()
    if pairs is None:
        return PredictedAUC(*_of_coordinates(mechanism), ceiling)
    likelier, best = np.mean([_of_rows(own, other) for own, other in pairs], axis=0).tolist()
    return PredictedAUC(likelier, likelier, best, ceiling)


def _of_rows(own: Floats, other: Floats) -> tuple[float, float]:
    """Return the AUCs of the likelier label and of the best score, from the probabilities of all outcomes.

    The hard guess reaches `½ (1 + total variation)`: where both labels are equally likely it is a coin.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.log(own) - np.log(other), posinf=_CERTAIN, neginf=-_CERTAIN)
    return float(1.0 + np.maximum(own - other, 0.0).sum()) / 2, auc_of_scores(own, other, ratio)


def _of_coordinates(mechanism: Mechanism) -> tuple[float, float, float]:
    """Return the three AUCs for k classes with independent coordinates: two classes differ in two of them.

    Class a against class b: the attack guesses a if t_a > t_b; under a, coordinate a is `own` and b is `other`.
    """
    rows = mechanism.coordinate
    assert rows is not None
    other, own = rows
    ratio = np.log(own) - np.log(other)
    hard, likelier = auc_of_scores(own, other, mechanism.values), auc_of_scores(own, other, ratio)
    # All pairs of ratios would not fit into memory for a wide grid, so near ones are merged; that costs less than
    # 1e-6. Far out the integers are small and their ratios rough: they must not set the scale.
    largest = float(np.abs(ratio[np.maximum(own, other) > 1e-12]).max())
    rounded = np.round(np.clip(ratio / largest, -1.0, 1.0) * _LEVELS)
    levels, group = np.unique(rounded, return_inverse=True)
    own, other = np.bincount(group, weights=own), np.bincount(group, weights=other)
    if_a = np.multiply.outer(own, other).astype(np.float64)
    return hard, likelier, auc_of_scores(if_a.ravel(), if_a.T.ravel(), np.subtract.outer(levels, levels).ravel())


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
