"""What releases cost together: sums of epsilons and deltas that never come out too small."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from tpsl.mechanisms import Cost, epsilon_of_rho, float_above
from tpsl.vault.errors import VaultError

Who = Literal["record", "unit", "person"]


@dataclass(frozen=True)
class Spent:
    """The largest ε and δ that any of some records, units or people has spent over all its releases."""

    epsilon: float = 0.0
    delta: float = 0.0
    private: bool = True
    """False if any of the records had a release with seeded noise or with none."""
    records: int = 0
    """How many records this speaks of; those of the one unit or person that has spent most, if it is about these."""
    who: Who = "record"
    """A unit (for example a user) spends what all its records do. A person is in a vault whose records alignments have
    made, and may have spent what a record of each of them has."""
    released_under: tuple[str, ...] = ()
    """The releases in words, where all of the records were part of the same ones."""

    def joined(self, other: "Spent") -> "Spent":
        """What is true of the records of both: the larger of each."""
        return Spent(
            max(self.epsilon, other.epsilon),
            max(self.delta, other.delta),
            self.private and other.private,
            self.records + other.records,
            max(self.who, other.who, key=("record", "unit", "person").index),
        )

    def plus(self, other: "Spent") -> "Spent":
        """What the same records have spent that have spent both."""
        epsilon, delta = total([self.epsilon, other.epsilon]), total([self.delta, other.delta])
        return Spent(epsilon, delta, self.private and other.private, self.records, self.who, self.released_under)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data; an infinite ε is the text "inf"."""
        found = {"records": self.records, "epsilon": as_json(self.epsilon), "delta": self.delta}
        return found | ({"released_under": list(self.released_under)} if self.released_under else {})


def as_json(number: float) -> float | str:
    """A float that survives JSON: infinity as the text "inf", which `float` reads back."""
    return "inf" if math.isinf(number) else number


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
