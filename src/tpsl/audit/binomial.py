"""Exact binomial bounds (Clopper and Pearson 1934)."""

from __future__ import annotations

from scipy.special import betaincinv

from tpsl.vault.outcome_tests import at_least


def tail_probability(right: int, trials: int, probability: float) -> float:
    """Return `P(X ≥ right)` for X binomial with this number of trials and this probability."""
    return float(at_least(right, trials, probability))


def clopper_pearson_lower(right: int, trials: int, confidence: float) -> float:
    """Return the one-sided lower bound on the probability of being right.

    Guarantee: whatever the probability, the bound lies above it in at most a share `1 - confidence` of all experiments.
    """
    if not 0 <= right <= trials or trials < 1:
        raise ValueError(f"{right} of {trials} guesses cannot be right")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence!r}")
    return float(betaincinv(right, trials - right + 1, 1.0 - confidence)) if right else 0.0
