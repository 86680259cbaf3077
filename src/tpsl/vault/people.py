"""What people spend who come again under new ids: in a vault of records that alignments have made.

Each alignment makes new records, with ids ALIGNMENT-NUMBER. Whom a record is about is known to the label party only if
it knows the record; but a label is drawn for every record, and says something about whomever it is about. Whoever is in
one alignment may be in every other, known there or not. So a person has spent what its unit has in one alignment (its
record, where records have no units), and in each other alignment what the unit has that spent most there.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.vault.adding import has_units
from tpsl.vault.budget import total
from tpsl.vault.canonical import ids_as_text
from tpsl.vault.ledger import LargestUnit
from tpsl.vault.planned import Charge
from tpsl.vault.totals import LedgerTotal, releases_of_each
from tpsl.vault.units import UnitKind, largest_unit

_ROWS = 1 << 18
_Numbers = npt.NDArray[np.int64]


class NewRecords(NamedTuple):
    """Records that are not in the vault yet: their ids, and their units if they have any."""

    ids: pa.Array
    units: pa.Array | None

    @classmethod
    def among(cls, positions: _Numbers, ids: Any, units: Any | None) -> Self:
        """Return those of some records that have no position in the vault."""
        new = pa.array(positions < 0)
        texts = pa.array(ids_as_text(ids), pa.string()).filter(new)
        return cls(texts, None if units is None else pa.array(ids_as_text(units, what="unit"), pa.string()).filter(new))


_NONE = NewRecords(pa.array([], pa.string()), None)


class _UnitRows(NamedTuple):
    """What units have: rows ordered by unit, each with a release and how many of the unit's records had it."""

    unit: _Numbers
    release: _Numbers
    records: _Numbers


def total_of_people(
    connection: sqlite3.Connection, positions: _Numbers, planned: Charge | None = None, new: NewRecords = _NONE
) -> LedgerTotal:
    """The most that anybody has spent, or will have when `planned` is released, whom one of some records is about.

    The records are those at `positions`, and new ones.
    """
    largest, private = _spent(connection, positions, planned, new)
    records = len(positions) + len(new.ids)
    return LedgerTotal(largest.epsilon, largest.delta, private, records, of_people=True)


def largest_person(connection: sqlite3.Connection, records: int) -> LargestUnit:
    """The most that anybody has spent over all alignments, and the number of records that it takes."""
    return _spent(connection, np.arange(records), None, _NONE)[0]


def _spent(
    connection: sqlite3.Connection, positions: _Numbers, planned: Charge | None, new: NewRecords
) -> tuple[LargestUnit, bool]:
    index_of, histories = releases_of_each(connection)
    unit_of, alignment_of = _units(connection, new)
    charges: list[Sequence[Charge]] = list(histories)
    asked = np.arange(len(unit_of)) >= len(index_of)
    asked[positions] = True
    released = np.flatnonzero(index_of)
    units, releases = [unit_of[released]], [index_of[released].astype(np.int64)]
    if planned is not None:
        drawn = np.array([any(entry.series == planned.series for entry in history) for history in histories])
        due = asked.copy()
        due[: len(index_of)] &= ~drawn[index_of]
        units.append(unit_of[due])
        releases.append(np.full(len(units[-1]), len(charges)))
        charges.append([planned])
    is_asked = np.zeros(len(alignment_of), np.bool_)
    is_asked[unit_of[asked]] = True
    found, counts = np.unique(np.concatenate(units) * len(charges) + np.concatenate(releases), return_counts=True)
    rows = _UnitRows(found // len(charges), found % len(charges), counts)
    of_all = _kinds(rows, len(charges), alignment_of)
    occurring = {at for kinds in of_all.values() for kind in kinds for at, _ in kind}
    private = all(release.private for at in occurring for release in charges[at])
    of_asked = _kinds(_UnitRows(*(part[is_asked[rows.unit]] for part in rows)), len(charges), alignment_of)
    largest = [{name: largest_unit(kinds, charges) for name, kinds in each.items()} for each in (of_all, of_asked)]
    for name in np.unique(alignment_of[is_asked]).tolist():
        largest[1].setdefault(name, LargestUnit(0.0, 0.0, 0))  # nothing of theirs was released there
    return _over_alignments(*largest), private


def _units(connection: sqlite3.Connection, new: NewRecords) -> tuple[_Numbers, _Numbers]:
    """Number the units of each alignment: return that of each record, new ones last, and the alignment of each unit."""
    names = _encoded([*_column(connection, "rtrim(id, '0123456789')"), pc.utf8_rtrim(new.ids, "0123456789")])
    alignments = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if new.units is None and not has_units(connection):
        return np.arange(len(alignments)), alignments  # each record is a unit of its own
    whom = pa.concat_arrays([*_column(connection, "COALESCE(unit, id)"), new.ids if new.units is None else new.units])
    units = _encoded([pc.binary_join_element_wise(names.indices.cast(pa.string()), whom, " ")])
    unit_of = units.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    alignment_of = np.zeros(len(units.dictionary), np.int64)
    alignment_of[unit_of] = alignments
    return unit_of, alignment_of


def _column(
    connection: sqlite3.Connection, expression: Literal["rtrim(id, '0123456789')", "COALESCE(unit, id)"]
) -> Any:
    """Yield a text of each record, by position, as Arrow arrays."""
    cursor = connection.execute(f"SELECT {expression} FROM records ORDER BY position")  # noqa: S608
    while rows := cursor.fetchmany(_ROWS):
        yield pa.array([text for (text,) in rows], pa.string())


def _encoded(parts: list[pa.Array]) -> pa.DictionaryArray:
    return pa.concat_arrays(parts).dictionary_encode()


def _kinds(rows: _UnitRows, count: int, alignment_of: _Numbers) -> dict[int, set[UnitKind]]:
    """Return the kinds of units that each alignment has; there are `count` releases.

    Most units have a single row, and few such rows differ but for the unit.
    """
    found = defaultdict[int, set[UnitKind]](set)
    unit, release, records = rows
    alone = np.bincount(unit, minlength=len(alignment_of))[unit] == 1
    most = int(records.max(initial=0)) + 1
    for code in np.unique((alignment_of[unit] * count + release)[alone] * most + records[alone]).tolist():
        found[code // most // count].add(frozenset([(code // most % count, code % most)]))
    several = zip(*(part[~alone].tolist() for part in rows), strict=True)
    for one, group in groupby(several, key=itemgetter(0)):
        found[int(alignment_of[one])].add(frozenset((at, many) for _, at, many in group))
    return found


def _over_alignments(of_all: Mapping[int, LargestUnit], of_asked: Mapping[int, LargestUnit]) -> LargestUnit:
    """Add to what is largest among those who are asked for in one alignment the largest of all others; the most."""
    sums = [LargestUnit(0.0, 0.0, 0)]
    for name, one in of_asked.items():
        parts = [one, *(each for other, each in of_all.items() if other != name)]
        epsilon, delta = total(part.epsilon for part in parts), total(part.delta for part in parts)
        sums.append(LargestUnit(epsilon, delta, sum(part.records for part in parts)))
    return max(sums, key=lambda unit: (unit.epsilon, unit.delta, unit.records))
