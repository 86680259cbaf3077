"""What the unit spends that spends most: units are whom records are about, and spend what all their records do."""

from collections.abc import Iterable, Sequence

from tpsl.mechanisms import compose
from tpsl.vault.ledger import LargestUnit, Series
from tpsl.vault.planned import Charge

UnitKind = frozenset[tuple[int, int]]
"""What a unit's records were part of: (number of a history, how many of its records have it). Units of a kind spend
the same, so exact arithmetic is done once for all of them."""


def largest_unit(kinds: Iterable[UnitKind], histories: Sequence[Sequence[Charge]]) -> LargestUnit:
    """Return what the unit of one of these kinds spends that spends most; `histories` are the releases of a record.

    How many of the unit's records are in one statistic matters: they share its noise. So records are counted by series.
    """
    named = [[(release.series, release) for release in history] for history in histories]
    units = (_unit([(named[history], count) for history, count in kind]) for kind in kinds)
    return max(units, key=lambda unit: (unit.epsilon, unit.delta, unit.records))


def _unit(parts: Sequence[tuple[Sequence[tuple[Series | None, Charge]], int]]) -> LargestUnit:
    """What a unit spends that has this number of records with each of some histories."""
    records: dict[Series | None, tuple[Charge, int]] = {}
    for history, count in parts:
        for series, release in history:
            records[series] = (release, records.get(series, (release, 0))[1] + count)
    spent = compose(release.cost_of(count) for release, count in records.values())
    return LargestUnit(spent.epsilon, spent.delta, sum(count for _, count in parts))
