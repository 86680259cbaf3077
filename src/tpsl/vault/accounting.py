"""What has been spent: computed from what each record was really released under, not from a sum over ledger entries.

A record spends what all releases of its label cost together, and those of labels of the vault that are the same one
under other names (`tpsl.vault.same_labels`). Exact sums are made once for each *history*, the releases that a record
was part of: records share few histories. A unit (for example a user) spends what all its records do.

People come again under new ids in a label of records that alignments have made. Each alignment makes new records, with
ids ALIGNMENT-NUMBER. Whom a record is about is known to the label party only if it knows the record; but a label is
drawn for every record, and says something about whomever it is about. Whoever is in one alignment may be in every
other, known there or not. So a person has spent what its unit has in one alignment (its record, where records have no
units), and in each other alignment what the unit has that spent most there.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.mechanisms import compose
from tpsl.spill import RowParts
from tpsl.vault import coverage, ledger, same_labels
from tpsl.vault.blocks import CHUNK, chunk_count, count_records, has_units, ids_between, read_blocks
from tpsl.vault.cost import Planned, PlannedStatistic, Series, Spent, total
from tpsl.vault.coverage import History, Mask, PositionSet
from tpsl.vault.id_index import find_positions
from tpsl.vault.ledger import Entry, Ledger
from tpsl.vault.same_labels import Label
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

Charge = Planned | PlannedStatistic | Entry
"""A release, asked for or made."""
Releases = tuple[Entry, ...]
"""The releases that a record was part of, oldest first."""
_Numbers = npt.NDArray[np.int64]
_RECORDS_AT_ONCE = 1 << 22
_TEXT = pa.large_string()
_SPACE = pa.scalar(" ", _TEXT)
_NONE = Texts.of([])


class Histories:
    """Under which releases each record of a label went out: numbered histories, and the number of each record's.

    The releases of `others` count too, of records with the same ids.
    """

    def __init__(self, store: Store, others: Iterable[Store] = ()) -> None:
        self._store, self._numbers = store, dict[History, int]({(): 0})
        self._entries = ledger.Entries(store)
        self._others = list(map(_OtherLabel, others))
        ids = ids_between(store, 0, count_records(store)) if self._others else _NONE
        self._of_others = [other.numbers_of(ids) for other in self._others]

    def of_chunk(self, chunk: int, mask: Mask | None = None) -> npt.NDArray[np.uint32]:
        """The number of the history of each record of a chunk, or of those that a mask chooses, in order."""
        records = max(0, min(CHUNK, count_records(self._store) - chunk * CHUNK))
        index, found = coverage.chunk_histories(self._store, chunk)
        chosen = slice(records) if mask is None else np.flatnonzero(mask[:records])
        # Only histories that occur are numbered: with [0, 5, 5] they are 0 and 5, and the records' [0, 1, 1].
        occurring, index = coverage.numbered(index[chosen], len(found))
        of_others = [numbers[chunk * CHUNK : chunk * CHUNK + records][chosen] for numbers in self._of_others]
        return self._numbered(index, [found[number] for number in occurring.tolist()], of_others)

    def of_all(self) -> _Numbers:
        """The number of the history of each record."""
        chunks = range(chunk_count(count_records(self._store)))
        return np.concatenate([np.zeros(0, np.int64), *map(self.of_chunk, chunks)]).astype(np.int64)

    def _numbered(self, index: _Numbers, found: list[History], of_others: list[_Numbers]) -> npt.NDArray[np.uint32]:
        """Number the histories of records, with the releases of the other labels."""
        for other, column in zip(self._others, of_others, strict=True):
            theirs = other.histories
            pairs, index = np.unique(index * len(theirs) + column, return_inverse=True)
            found = [(*found[pair // len(theirs)], *theirs[pair % len(theirs)]) for pair in pairs.tolist()]
        numbers = [self._numbers.setdefault(tuple(sorted(history)), len(self._numbers)) for history in found]
        return np.array(numbers, np.uint32)[index]

    def counted(self, wanted: PositionSet | None = None, new: Texts | None = None) -> list[tuple[Releases, int]]:
        """Under which releases these records went out, and how many went out like that; None: all records.

        `new` are records that the label does not have yet, and others may have.
        """
        counts = Counter[int]()
        if new is not None:
            of_others = [other.numbers_of(new) for other in self._others]
            counts.update(self._numbered(np.zeros(len(new), np.int64), [()], of_others).tolist())
        wanted = PositionSet.up_to(count_records(self._store)) if wanted is None else wanted
        for chunk, mask in wanted.masks():
            counts.update(_counted(self.of_chunk(chunk, mask)))
        releases = self.releases()
        return [(releases[number], counts[number]) for number in sorted(counts)]

    def releases(self) -> list[Releases]:
        """The releases of each history by its number, of the chunks that were asked for; the first has none."""
        return [tuple(self._entries[entry] for entry in history) for history in self._numbers]

    def without(self, series: Series | None, wanted: PositionSet) -> tuple[PositionSet, Counter[tuple[str, ...]]]:
        """The wanted records that a series of this label does not cover, and how many of them have which others."""
        missing, elsewhere = PositionSet(), Counter[tuple[str, ...]]()
        for chunk, mask in wanted.masks():
            index, releases = self.of_chunk(chunk, mask), self.releases()
            is_own = np.array([self._has(history, series) for history in releases])[index]
            left = mask.copy()
            left[np.flatnonzero(mask)[is_own]] = False
            missing.put(chunk, left)
            for number, count in _counted(index[~is_own]).items():
                if number:
                    elsewhere[tuple(entry.description for entry in releases[number])] += count
        return missing, elsewhere

    def _has(self, history: Releases, series: Series | None) -> bool:
        return any(entry.series == series and entry.details["label"] == self._store.label for entry in history)

    def spent(self, wanted: PositionSet, planned: Charge | None = None, new: Texts | None = None) -> Spent:
        """The most that any of these records has spent, or will have when `planned` is released."""
        found = Spent()
        for history, count in self.counted(wanted, new):
            due = planned is not None and not self._has(history, planned.series)
            found = found.joined(spent_under([*history, *([planned] if planned is not None and due else [])], count))
        return found


def _counted(numbers: npt.NDArray[np.uint32]) -> dict[int, int]:
    """How often each number occurs."""
    counts = np.bincount(numbers)
    return {number: int(counts[number]) for number in np.flatnonzero(counts).tolist()}


class _OtherLabel:
    """Under which releases the records of another label went out, by their ids."""

    def __init__(self, store: Store) -> None:
        found = Histories(store)
        self._store, self._numbers, self.histories = store, found.of_all(), list(found._numbers)

    def numbers_of(self, ids: Texts) -> _Numbers:
        """The number of each record's history; 0, without releases, also where the label does not have the record."""
        numbers, positions = np.zeros(len(ids), np.int64), find_positions(self._store, ids)
        numbers[positions >= 0] = self._numbers[positions[positions >= 0]]
        return numbers


def spent_under(parts: Iterable[Charge], records: int) -> Spent:
    """What all of these releases together cost the same records."""
    parts = list(parts)
    spent = compose(part.cost for part in parts)
    under = tuple(part.description for part in parts if isinstance(part, Entry))
    return Spent(spent.epsilon, spent.delta, all(part.private for part in parts), records, released_under=under)


class Account:
    """What the records of a label have spent, by it and by other labels of the vault.

    None: by those that are the same one under other names.
    """

    def __init__(self, store: Store, others: Iterable[Label] | None = None) -> None:
        self._store, self._elsewhere = store, Spent()
        self.counts_people = same_labels.label_numbered(store).counts_people
        by_id = []
        for label in same_labels.same_as(store) if others is None else others:
            other = replace(store, label=label.number)
            if self.counts_people or label.counts_people:
                # Which record is whose is not known by ids: everybody may have spent the most of the other label.
                self._elsewhere = self._elsewhere.plus(Account(other, ())._of_all())
            else:
                by_id.append(other)
        self.histories = Histories(store, by_id)

    def _of_all(self) -> Spent:
        """The most that any record, or anybody, has spent."""
        return self.spent(PositionSet.up_to(count_records(self._store)))

    def spent(self, wanted: PositionSet, planned: Charge | None = None, new: Texts = _NONE) -> Spent:
        """The most that any of these records has spent, or will have when `planned` is released.

        `new` are further records that the label does not have yet; of a label that counts people it is what anybody has
        spent over all alignments whom one of the records may be about.
        """
        if self.counts_people:
            found = total_of_people(self._store, wanted.positions(), planned, new)
        else:
            found = self.histories.spent(wanted, planned, new)
        return found.plus(self._elsewhere)

    def conflicts(self, wanted: PositionSet, series: Series | None) -> Counter[tuple[str, ...]]:
        """How many of these records, which a series does not cover, have which other releases."""
        missing, elsewhere = self.histories.without(series, wanted)
        if self._elsewhere.epsilon and len(missing) > elsewhere.total():
            elsewhere[("another label of the vault that is the same",)] += len(missing) - elsewhere.total()
        return elsewhere

    def ledger(self) -> Ledger:
        """The ledger with its totals, from one state of the vault; time is linear in the records, memory bounded."""
        store = self._store
        entries, records = ledger.read_entries(store), count_records(store)
        own = [entry for entry in entries if entry.details.get("label") == store.label]
        unit: Spent | None = None
        if self.counts_people and records:
            unit = self._of_all()
        elif any(entry.details.get("units_digest") for entry in own):
            unit = self._largest_unit()
        merged: dict[tuple[Series, ...], tuple[Releases, int]] = {}
        for history, count in self.histories.counted():
            if history or self._elsewhere.epsilon:  # records of several releases in one series appear together
                series = tuple(sorted((entry.series for entry in history), key=repr))
                first, before = merged.get(series, (history, 0))
                merged[series] = (first, before + count)
        spent = [spent_under(history, count).plus(self._elsewhere) for history, count in merged.values()]
        spent.sort(key=lambda part: (-part.epsilon, -part.delta, part.released_under))
        label, same = same_labels.label_numbered(store), tuple(other.number for other in same_labels.same_as(store))
        found = Ledger(label.number, label.name, label.classes, records, entries, tuple(spent), unit, same)
        others = [other for other in same_labels.labels_of(store).values() if other.number != store.label]
        return replace(found, all_labels=Account(store, others)._of_all() if others else None)

    def _largest_unit(self) -> Spent:
        """Find the unit that spent most; sums are exact: the records of a unit are counted by history.

        Units are taken in parts, by their hashes, so that memory is bounded.
        """
        kinds: set[UnitKind] = set()
        key, parts = secrets.token_bytes(16), -(-count_records(self._store) // _RECORDS_AT_ONCE)
        with RowParts(self._store.folder, parts) as whom:
            for chunk, block in enumerate(read_blocks(self._store)):
                history_of = self.histories.of_chunk(chunk).astype(np.int64)
                given = Texts.empty(len(block)) if block.units is None else block.units
                whom.write((given.hashes(key)[0] >> np.uint64(32)) % np.uint64(parts), given.terminated, history_of)
            releases = self.histories.releases()
            for units, history_of in whom.parts():
                unit_of, count = Texts(units).numbered()
                kind_of, found = _kinds_of_units(unit_of, history_of, count)
                kinds |= {found[number] for number in np.unique(kind_of).tolist()}
        return max((_spent_by_unit(kind, releases) for kind in kinds), key=_size).plus(self._elsewhere)


UnitKind = tuple[tuple[int, int], ...]
"""What a unit's records were part of: (number of a history, how many of its records have it). Units of a kind spend
the same, so exact arithmetic is done once for all of them."""


def _kinds_of_units(unit_of: _Numbers, history_of: _Numbers, units: int) -> tuple[_Numbers, list[UnitKind]]:
    """The number of each unit's kind, and the kinds, of records whose units and histories are given by number."""
    width = int(history_of.max(initial=0)) + 1
    codes, counts = np.unique(unit_of * width + history_of, return_counts=True)
    unit, history, most = codes // width, codes % width, int(counts.max(initial=0)) + 1
    kind_of, kinds = np.zeros(units, np.int64), list[UnitKind]([()])
    rank = np.arange(len(unit)) - np.searchsorted(unit, unit)  # for the units 0, 0, 4 it is 0, 1, 0
    for each in range(int(rank.max(initial=-1)) + 1):  # the first history of all units, then the second, …
        rows = rank == each
        found, number = np.unique(
            (kind_of[unit[rows]] * width + history[rows]) * most + counts[rows], return_inverse=True
        )
        kind_of[unit[rows]] = len(kinds) + number
        kinds += [(*kinds[code // most // width], (code // most % width, code % most)) for code in found.tolist()]
    return kind_of, kinds


def _spent_by_unit(kind: UnitKind, histories: Sequence[Sequence[Charge]]) -> Spent:
    """What a unit of a kind spends; `histories` are the releases of a record.

    How many of the unit's records are in one statistic matters: they share its noise. So records are counted by series.
    """
    records: dict[object, tuple[Charge, int]] = {}
    for history, count in kind:
        for release in histories[history]:
            which = (release.series, release.details["label"]) if isinstance(release, Entry) else release.series
            records[which] = (release, records.get(which, (release, 0))[1] + count)
    spent = compose(release.cost_of(count) for release, count in records.values())
    private = all(release.private for release, _ in records.values())
    return Spent(spent.epsilon, spent.delta, private, sum(count for _, count in kind), "unit")


def _size(spent: Spent) -> tuple[float, float, int]:
    return spent.epsilon, spent.delta, spent.records


def total_of_people(store: Store, positions: _Numbers, planned: Charge | None = None, new: Texts = _NONE) -> Spent:
    """The most that anybody has spent, or will have when `planned` is released, whom one of some records is about.

    The records are those at `positions`, and new ones.
    """
    histories = Histories(store)
    index_of = histories.of_all()
    releases = histories.releases()
    unit_of, alignment_of = _units(store, new)
    charges: list[Sequence[Charge]] = list(releases)
    asked = np.arange(len(unit_of)) >= len(index_of)
    asked[positions] = True
    released = np.flatnonzero(index_of)
    units, numbers = [unit_of[released]], [index_of[released]]
    if planned is not None:
        drawn = np.array([any(entry.series == planned.series for entry in history) for history in releases])
        due = asked.copy()
        due[: len(index_of)] &= ~drawn[index_of]
        units.append(unit_of[due])
        numbers.append(np.full(len(units[-1]), len(charges)))
        charges.append([planned])
    is_asked = np.zeros(len(alignment_of), np.bool_)
    is_asked[unit_of[asked]] = True
    kind_of, kinds = _kinds_of_units(np.concatenate(units), np.concatenate(numbers), len(alignment_of))
    spent = {number: _spent_by_unit(kinds[number], charges) for number in np.unique(kind_of).tolist()}
    of_all = _largest_by_alignment(alignment_of, kind_of, spent)
    of_asked = _largest_by_alignment(alignment_of[is_asked], kind_of[is_asked], spent)
    return replace(_over_alignments(of_all, of_asked), private=all(each.private for each in spent.values()))


def _largest_by_alignment(alignment_of: _Numbers, kind_of: _Numbers, spent: Mapping[int, Spent]) -> dict[int, Spent]:
    """What the unit of each alignment has spent that spent most."""
    found = dict[int, Spent]()
    for name, kind in np.unique(np.stack([alignment_of, kind_of], axis=1), axis=0).tolist():
        found[name] = max(found.get(name, Spent()), spent[kind], key=_size)
    return found


def _units(store: Store, new: Texts) -> tuple[_Numbers, _Numbers]:
    """Number the units of each alignment: return that of each record, new ones last, and the alignment of each unit.

    Where records have no units, each is a unit of its own; so is a new one.
    """
    found = list(read_blocks(store))
    ids = Texts.joined([*(block.ids for block in found), new])
    names = pc.utf8_rtrim(ids.to_arrow(), "0123456789").dictionary_encode().indices
    alignments = names.to_numpy().astype(np.int64)
    if not has_units(store):
        return np.arange(len(ids)), alignments
    whom = Texts.joined([*(block.units or block.ids for block in found), new]).to_arrow()
    units = pc.binary_join_element_wise(names.cast(_TEXT), whom, _SPACE).dictionary_encode()
    unit_of = units.indices.to_numpy().astype(np.int64)
    alignment_of = np.zeros(len(units.dictionary), np.int64)
    alignment_of[unit_of] = alignments
    return unit_of, alignment_of


def _over_alignments(of_all: Mapping[int, Spent], of_asked: Mapping[int, Spent]) -> Spent:
    """Add to what is largest among those who are asked for in one alignment the largest of all others; the most."""
    sums = [Spent(who="person")]
    for name, one in of_asked.items():
        parts = [one, *(each for other, each in of_all.items() if other != name)]
        epsilon, delta = total(part.epsilon for part in parts), total(part.delta for part in parts)
        sums.append(Spent(epsilon, delta, True, sum(part.records for part in parts), "person"))
    return max(sums, key=_size)
