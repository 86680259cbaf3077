"""What an attack on the noisy label can reach: the AUCs that follow from a mechanism alone.

They hold for any attack whose score depends on the noisy label alone; one that also uses what features say about the
label can have more (`tpsl.attacks.with_features`). For more than two classes they speak about telling one given class
from another given class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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


def auc_of_scores(
    if_positive: npt.NDArray[np.float64],
    if_negative: npt.NDArray[np.float64],
    scores: npt.NDArray[np.float64],
) -> float:
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


def predicted_by_votes(own: float, other: float, ceiling: float) -> PredictedAUC:
    """Return the AUCs where an outcome votes for one of the two classes, for the other, or for neither.

    `own` is the probability of a vote for the true class, `other` that of a vote for the other one. Without a vote the
    hard guess is a coin toss; a score puts such outcomes in the middle, which ranks better.
    """
    neither = 1.0 - own - other
    best = auc_of_scores(np.array([own, neither, other]), np.array([other, neither, own]), np.array([1.0, 0.0, -1.0]))
    hard = (1.0 + own - other) / 2
    return PredictedAUC(hard, hard, best, ceiling)
