"""Exact binomial bounds (Clopper and Pearson 1934), by bisection on the exact tail."""

from __future__ import annotations

import math

import numpy as np

_BISECTIONS = 80


def tail_probability(right: int, trials: int, probability: float) -> float:
    """Return `P(X ≥ right)` for X binomial with so many trials of this probability."""
    if right <= 0:
        return 1.0
    if probability <= 0.0:
        return 0.0
    if probability >= 1.0:
        return 1.0
    counts = np.arange(right, trials + 1, dtype=np.float64)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1, dtype=np.float64)))])
    chosen = factorials[trials] - factorials[right:] - factorials[: trials - right + 1][::-1]
    logs = chosen + counts * math.log(probability) + (trials - counts) * math.log1p(-probability)
    largest = float(logs.max())
    return min(1.0, math.exp(largest) * float(np.exp(logs - largest).sum()))


def clopper_pearson_lower(right: int, trials: int, confidence: float) -> float:
    """Return the one-sided lower bound on the probability of being right.

    Guarantee: whatever the probability, the bound lies above it in at most a share `1 - confidence` of all experiments.
    """
    if not 0 <= right <= trials or trials < 1:
        raise ValueError(f"{right} of {trials} guesses cannot be right")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence!r}")
    low, high = 0.0, right / trials
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if tail_probability(right, trials, middle) <= 1.0 - confidence:
            low = middle
        else:
            high = middle
    return low
