"""What the unit spends that spends most: units are whom records are about, and spend what all their records do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import compose
from tpsl.vault.ledger import LargestUnit, Series
from tpsl.vault.planned import Charge

UnitKind = frozenset[tuple[int, int]]
"""What a unit's records were part of: (number of a history, how many of its records have it). Units of a kind spend
the same, so exact arithmetic is done once for all of them."""


_Numbers = npt.NDArray[np.int64]


class UnitRows(NamedTuple):
    """What units have: rows ordered by unit, each with a history and how many of the unit's records had it."""

    unit: _Numbers
    history: _Numbers
    records: _Numbers

    @classmethod
    def counted(cls, unit_of: _Numbers, history_of: _Numbers, histories: int) -> Self:
        """Count records, of each of which the unit and the history are given by number."""
        found, counts = np.unique(unit_of * histories + history_of, return_counts=True)
        return cls(found // histories, found % histories, counts)

    def kinds(self, group_of: _Numbers) -> dict[int, set[UnitKind]]:
        """The kinds of units that each group of units has.

        Most units have a single row, and few such rows differ but for the unit.
        """
        found = defaultdict[int, set[UnitKind]](set)
        unit, history, records = self
        alone = np.bincount(unit, minlength=len(group_of))[unit] == 1
        count, most = int(history.max(initial=0)) + 1, int(records.max(initial=0)) + 1
        for code in np.unique((group_of[unit] * count + history)[alone] * most + records[alone]).tolist():
            found[code // most // count].add(frozenset([(code // most % count, code % most)]))
        several = zip(*(part[~alone].tolist() for part in self), strict=True)
        for one, rows in groupby(several, key=itemgetter(0)):
            found[int(group_of[one])].add(frozenset((at, many) for _, at, many in rows))
        return found


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
