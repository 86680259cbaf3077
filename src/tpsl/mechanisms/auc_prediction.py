"""What an attack on the noisy label can reach: the AUCs that follow from a mechanism alone.

They hold for any attack whose score depends on the noisy label alone; one that also uses what features say about the
label can have more (`tpsl.attacks.with_features`). For more than two classes they speak about telling one given class
from another given class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.additive import AdditiveMechanism
from tpsl.mechanisms.mechanism import Mechanism
from tpsl.mechanisms.randomized_response import RandomizedResponse
from tpsl.mechanisms.subset_selection import SubsetSelection
from tpsl.mechanisms.table import TOTAL, Table
from tpsl.mechanisms.table_mechanism import TableMechanism

Floats = npt.NDArray[np.float64]

_CERTAIN = 1000.0
"""Stands for an infinite log-likelihood ratio."""
_LEVELS = 1000
"""How finely the likelihood ratios of one coordinate, on either side of 1, are told apart to compare pairs of them."""


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

    For a table of a user's own with k classes they are the mean over all pairs of classes; every other mechanism treats
    its classes alike.
    """
    ceiling = auc_ceiling(mechanism.epsilon, mechanism.delta)
    if mechanism.classes > 2 and isinstance(mechanism, AdditiveMechanism):
        return PredictedAUC(*_of_coordinates(mechanism.table), ceiling)
    if isinstance(mechanism, AdditiveMechanism | TableMechanism):
        rows = mechanism.weights.astype(np.float64) / TOTAL
        likelier, best = np.mean([_of_rows(own, other) for other, own in combinations(rows, 2)], axis=0).tolist()
    elif isinstance(mechanism, SubsetSelection | RandomizedResponse):
        own_vote, other_vote = _votes(mechanism)
        votes = np.array([own_vote, 1.0 - own_vote - other_vote, other_vote])
        likelier, best = _of_rows(votes, votes[::-1])
    else:
        raise TypeError(f"no closed form is known for {mechanism}")
    return PredictedAUC(likelier, likelier, best, ceiling)


def _of_rows(own: Floats, other: Floats) -> tuple[float, float]:
    """Return the AUCs of the likelier label and of the best score, from the probabilities of all outcomes.

    The hard guess reaches `½ (1 + total variation)`: where both labels are equally likely it is a coin.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.log(own) - np.log(other), posinf=_CERTAIN, neginf=-_CERTAIN)
    return float(1.0 + np.maximum(own - other, 0.0).sum()) / 2, auc_of_scores(own, other, ratio)


def _votes(mechanism: SubsetSelection | RandomizedResponse) -> tuple[float, float]:
    """Return how often an outcome votes for the true one of two classes, and for the other one.

    A set that holds one of the two classes votes for it; one that holds both or neither says nothing, as does a third
    class.
    """
    if isinstance(mechanism, SubsetSelection):
        holds, others = mechanism.holds / TOTAL, mechanism.classes - 1
        return holds * (mechanism.classes - mechanism.size) / others, (1.0 - holds) * mechanism.size / others
    return mechanism.keep / TOTAL, mechanism.flip / TOTAL


def _of_coordinates(table: Table) -> tuple[float, float, float]:
    """Return the three AUCs for k classes with noise on each coordinate: two classes differ in two coordinates.

    Class a against class b: the attack guesses a if t_a > t_b; under a, coordinate a is `own` and b is `other`.
    """
    other, own = table.weights.astype(np.float64) / TOTAL
    ratio = table.log_weights[1] - table.log_weights[0]
    hard, likelier = auc_of_scores(own, other, table.values), auc_of_scores(own, other, ratio)
    # All pairs of ratios would not fit into memory for a wide grid, so near ones are merged; that costs less than
    # 1e-6. Far out the integers are small and their ratios rough: they must not set the scale.
    largest = float(np.abs(ratio[np.maximum(own, other) > 1e-12]).max())
    rounded = np.round(np.clip(ratio / largest, -1.0, 1.0) * _LEVELS)
    levels, group = np.unique(rounded, return_inverse=True)
    own, other = np.bincount(group, weights=own), np.bincount(group, weights=other)
    if_a = np.multiply.outer(own, other).astype(np.float64)
    return hard, likelier, auc_of_scores(if_a.ravel(), if_a.T.ravel(), np.subtract.outer(levels, levels).ravel())
