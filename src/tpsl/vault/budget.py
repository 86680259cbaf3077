"""Sums of epsilons and deltas that never come out too small."""

import math
from collections.abc import Iterable
from fractions import Fraction

from tpsl.vault.errors import VaultError


def total(parts: Iterable[float]) -> float:
    """The sum of non-negative numbers, computed exactly and rounded up to a float; infinity stays infinity.

    Basic composition: releases of one record with (epsilon_i, delta_i) together have (sum epsilon_i, sum delta_i).
    """
    parts = list(parts)
    if any(math.isinf(part) for part in parts):
        return math.inf
    return _rounded_up(sum((Fraction(part) for part in parts), Fraction(0)))


def times(part: float, count: int) -> float:
    """`count` times `part`, rounded up."""
    if count == 0 or math.isinf(part):
        return part if count else 0.0
    return _rounded_up(Fraction(part) * count)


def _rounded_up(exact: Fraction) -> float:
    rounded = float(exact)
    return rounded if Fraction(rounded) >= exact else math.nextafter(rounded, math.inf)


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
