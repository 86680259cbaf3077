"""What people spend who come again under new ids: in a vault of records that alignments have made.

Each alignment makes new records, with ids ALIGNMENT-NUMBER. Whom a record is about is known to the label party only if
it knows the record; but a label is drawn for every record, and says something about whomever it is about. Whoever is in
one alignment may be in every other, known there or not. So a person has spent what its unit has in one alignment (its
record, where records have no units), and in each other alignment what the unit has that spent most there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.vault.blocks import Block, has_units, read_blocks
from tpsl.vault.budget import total
from tpsl.vault.canonical import ids_as_text
from tpsl.vault.ledger import LargestUnit
from tpsl.vault.planned import Charge
from tpsl.vault.store import Store
from tpsl.vault.totals import LedgerTotal, releases_of_each
from tpsl.vault.units import UnitRows, largest_unit

_Numbers = npt.NDArray[np.int64]


class NewRecords(NamedTuple):
    """Records that are not in the vault yet: their ids, and their units if they have any."""

    ids: pa.Array
    units: pa.Array | None

    @classmethod
    def among(cls, known: npt.NDArray[np.bool_], ids: Any, units: Any | None) -> Self:
        """Return those of some records that the vault does not know."""
        new = pa.array(~known)
        texts = ids_as_text(ids).to_arrow().filter(new)
        return cls(texts, None if units is None else ids_as_text(units, what="unit").to_arrow().filter(new))


_TEXT = pa.large_string()
_SPACE = pa.scalar(" ", _TEXT)
_NONE = NewRecords(pa.array([], _TEXT), None)


def total_of_people(
    store: Store, positions: _Numbers, planned: Charge | None = None, new: NewRecords = _NONE
) -> LedgerTotal:
    """The most that anybody has spent, or will have when `planned` is released, whom one of some records is about.

    The records are those at `positions`, and new ones.
    """
    largest, private = _spent(store, positions, planned, new)
    records = len(positions) + len(new.ids)
    return LedgerTotal(largest.epsilon, largest.delta, private, records, of_people=True)


def largest_person(store: Store, records: int) -> LargestUnit:
    """The most that anybody has spent over all alignments, and the number of records that it takes."""
    return _spent(store, np.arange(records), None, _NONE)[0]


def _spent(store: Store, positions: _Numbers, planned: Charge | None, new: NewRecords) -> tuple[LargestUnit, bool]:
    index_of, histories = releases_of_each(store)
    unit_of, alignment_of = _units(store, new)
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
    rows = UnitRows.counted(np.concatenate(units), np.concatenate(releases), len(charges))
    of_all = rows.kinds(alignment_of)
    occurring = {at for kinds in of_all.values() for kind in kinds for at, _ in kind}
    private = all(release.private for at in occurring for release in charges[at])
    of_asked = UnitRows(*(part[is_asked[rows.unit]] for part in rows)).kinds(alignment_of)
    largest = [{name: largest_unit(kinds, charges) for name, kinds in each.items()} for each in (of_all, of_asked)]
    for name in np.unique(alignment_of[is_asked]).tolist():
        largest[1].setdefault(name, LargestUnit(0.0, 0.0, 0))  # nothing of theirs was released there
    return _over_alignments(*largest), private


def _units(store: Store, new: NewRecords) -> tuple[_Numbers, _Numbers]:
    """Number the units of each alignment: return that of each record, new ones last, and the alignment of each unit."""
    ids, units_given, whom = [], has_units(store) or new.units is not None, []
    for block in read_blocks(store):
        ids.append(_alignment(block.ids.to_arrow()))
        if units_given:
            whom.append(_whom(block))
    names = _encoded([*ids, _alignment(new.ids)])
    alignments = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if not units_given:
        return np.arange(len(alignments)), alignments  # each record is a unit of its own
    whom.append(new.ids if new.units is None else new.units)
    units = _encoded([pc.binary_join_element_wise(names.indices.cast(_TEXT), pa.concat_arrays(whom), _SPACE)])
    unit_of = units.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    alignment_of = np.zeros(len(units.dictionary), np.int64)
    alignment_of[unit_of] = alignments
    return unit_of, alignment_of


def _alignment(ids: Any) -> Any:
    """The name of the alignment in each id."""
    return pc.utf8_rtrim(ids, "0123456789")


def _whom(block: Block) -> Any:
    """Whom each record is about: its unit, or itself in a vault without units."""
    return (block.ids if block.units is None else block.units).to_arrow()


def _encoded(parts: list[pa.Array]) -> pa.DictionaryArray:
    return pa.concat_arrays(parts).dictionary_encode()


def _over_alignments(of_all: Mapping[int, LargestUnit], of_asked: Mapping[int, LargestUnit]) -> LargestUnit:
    """Add to what is largest among those who are asked for in one alignment the largest of all others; the most."""
    sums = [LargestUnit(0.0, 0.0, 0)]
    for name, one in of_asked.items():
        parts = [one, *(each for other, each in of_all.items() if other != name)]
        epsilon, delta = total(part.epsilon for part in parts), total(part.delta for part in parts)
        sums.append(LargestUnit(epsilon, delta, sum(part.records for part in parts)))
    return max(sums, key=lambda unit: (unit.epsilon, unit.delta, unit.records))
