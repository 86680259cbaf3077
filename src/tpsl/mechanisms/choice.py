"""The recommended mechanism for an ε and a number of classes, chosen by its own formula."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tpsl.mechanisms.laplace import laplace
from tpsl.mechanisms.mechanism import Mechanism
from tpsl.mechanisms.optimized_unary import optimized_unary
from tpsl.mechanisms.randomized_response import randomized_response
from tpsl.mechanisms.subset_selection import SubsetSelection, subset_selection


def variance_of_unbiased(mechanism: Mechanism) -> float:
    """Return the total variance of the unbiased estimate of the label's unit vector, summed over its k coordinates.

    The estimate is `(t - μ_other) / (μ_own - μ_other)`. Which label is estimated does not matter: every mechanism
    treats all classes alike.
    """
    if mechanism.classes == 2:
        # The unit vector is (1 - t, t): both coordinates have the variance of t.
        return float(2 * mechanism.variance(1) / (mechanism.mean(1) - mechanism.mean(0)) ** 2)
    own, other = mechanism.mean(0)[:2]
    return float(np.sum(mechanism.variance(0)) / (own - other) ** 2)


@lru_cache(maxsize=32, typed=True)
def best_for(epsilon: float, classes: int) -> tuple[Mechanism, str]:
    """Return the mechanism that makes most of ε for this number of classes, and a sentence that says why.

    Two classes: randomised response, of which every ε-DP mechanism is a post-processing (Kairouz, Oh, Viswanath 2015).
    More: the one with the lowest total variance of the unbiased label. The choice uses no data, so it costs no budget.

    The variance is also the measure for the estimator `posterior`, as long as the network tells classes apart only a
    little. A network that is nearly sure learns a little more from larger sets, which the mutual information of label
    and noisy label would choose; measured in accuracy, neither choice was ahead of the other.
    """
    plain = randomized_response(epsilon, classes)
    if plain.classes == 2:
        return plain, "randomised response: for two classes every mechanism of the same ε is a post-processing of it"
    candidates: list[tuple[str, Mechanism]] = [
        ("randomised response", plain),
        ("optimised unary encoding", optimized_unary(epsilon, classes)),
        ("Laplace", laplace(epsilon, classes)),
    ]
    subset = subset_selection(epsilon, classes)
    if isinstance(subset, SubsetSelection):
        candidates.append((f"subset selection of {subset.size} of {classes} classes", subset))
    ranked = sorted((variance_of_unbiased(mechanism), name, mechanism) for name, mechanism in candidates)
    (lowest, name, best), *others = ranked
    against = ", ".join(f"{name} {_shown(variance)}" for variance, name, _ in others)
    return best, f"{name}: total variance {_shown(lowest)} of an unbiased label, against {against}"


def _shown(variance: float) -> str:
    return f"{variance:.0f}" if variance >= 100 else f"{variance:.3g}"
