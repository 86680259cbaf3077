"""What the unit spends that spends most: units are whom records are about, and spend what all their records do."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from tpsl.vault.budget import times, total
from tpsl.vault.ledger import LargestUnit

UnitKind = frozenset[tuple[int, int]]
"""What a unit's records were part of: (number of a history, how many of its records have it). Units of a kind spend
the same, so exact arithmetic is done once for all of them."""


class Cost(Protocol):
    """What each record with a history has spent."""

    @property
    def epsilon(self) -> float:
        """ε."""

    @property
    def delta(self) -> float:
        """δ."""


def largest_unit(kinds: Iterable[UnitKind], costs: Sequence[Cost]) -> LargestUnit:
    """Return what the unit of one of these kinds spends that spends most; `costs` are those of each history."""
    units = (
        LargestUnit(
            total(times(costs[history].epsilon, count) for history, count in kind),
            total(times(costs[history].delta, count) for history, count in kind),
            sum(count for _, count in kind),
        )
        for kind in kinds
    )
    return max(units, key=lambda unit: (unit.epsilon, unit.delta, unit.records))
