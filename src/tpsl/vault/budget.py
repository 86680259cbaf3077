"""What releases cost together: sums of epsilons and deltas that never come out too small."""

import math
from collections.abc import Iterable
from fractions import Fraction

from tpsl.mechanisms import Cost, epsilon_of_rho, float_above
from tpsl.vault.errors import VaultError


def total(parts: Iterable[float]) -> float:
    """The sum of non-negative numbers, computed exactly and rounded up to a float; infinity stays infinity.

    Basic composition: releases of one record with (epsilon_i, delta_i) together have (sum epsilon_i, sum delta_i).
    """
    parts = list(parts)
    if any(math.isinf(part) for part in parts):
        return math.inf
    return float_above(sum((Fraction(part) for part in parts), Fraction(0)))


def times(part: float, count: int) -> float:
    """`count` times `part`, rounded up."""
    if count == 0 or math.isinf(part):
        return part if count else 0.0
    return float_above(Fraction(part) * count)


def repeated(cost: Cost, count: int) -> Cost:
    """What `count` independent releases cost together: one for each of a unit's records."""
    rho = cost.zcdp
    return Cost(times(cost.epsilon, count), times(cost.delta, count), None if rho is None else count * rho)


def of_group(cost: Cost, count: int) -> Cost:
    """What one release costs a unit that `count` of its records have a part in: group privacy.

    `count` labels that change together move a statistic `count` times as far: count·ε for pure ε, count²·ρ for zCDP
    (Bun and Steinke 2016, Proposition 1.9), stated at the same δ.
    """
    if count == 1:
        return cost
    if cost.rho is None:
        return Cost(times(cost.epsilon, count))
    rho = count**2 * cost.rho
    return Cost(epsilon_of_rho(rho, cost.delta), cost.delta, rho)


def is_large_delta(delta: float, records: int) -> bool:
    """Say whether δ is above 1/records: then ε is expected to fail for at least one record."""
    return delta > 1 / max(records, 1)


def check_delta(delta: float, records: int, max_delta: float | None = None) -> None:
    """Raise a `VaultError` if the δ of a record is above `max_delta`; None: above 1/records.

    With probability δ the promise of ε may fail for a record altogether: a mechanism that shows one label in a thousand
    as it is has δ = 0.001. Above 1/records that is expected to happen to at least one of them.
    """
    if max_delta is not None and not 0 <= max_delta <= 1:
        raise VaultError(f"the largest δ must be a number from 0 to 1, not {max_delta}")
    if is_large_delta(delta, records) if max_delta is None else delta > max_delta:
        limit = f"1/records = {1 / max(records, 1):.3g} for {records:,} records"
        stated = limit if max_delta is None else f"{max_delta:g}"
        raise VaultError(
            f"a record would have δ = {delta:.6g} in all, more than {stated}: with that probability ε promises nothing "
            "for it; allow it with max_delta (--set local.max_delta=…) if you mean it"
        )
