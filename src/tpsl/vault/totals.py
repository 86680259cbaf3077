"""What the releases of some records cost them in all, exact and rounded up: the number that people see first."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import compose
from tpsl.vault import coverage, ledger
from tpsl.vault.blocks import CHUNK, chunk_count, count_records
from tpsl.vault.coverage import History, PositionSet
from tpsl.vault.ledger import Entry
from tpsl.vault.planned import Charge
from tpsl.vault.releasing import releases_by_number
from tpsl.vault.store import Store

Releases = tuple[Entry, ...]
"""The releases that a record was part of, oldest first."""


@dataclass(frozen=True)
class LedgerTotal:
    """The largest ε and δ that any of some records has spent over all its releases in a vault."""

    epsilon: float = 0.0
    delta: float = 0.0
    private: bool = True
    """False if any of the records had a release with seeded noise or with none."""
    records: int = 0
    """How many records this speaks of."""
    of_people: bool = False
    """Whether it is what people have spent over all alignments that may have made a record of them."""

    def joined(self, other: "LedgerTotal") -> "LedgerTotal":
        """What is true of the records of both."""
        return LedgerTotal(
            max(self.epsilon, other.epsilon),
            max(self.delta, other.delta),
            self.private and other.private,
            self.records + other.records,
            self.of_people or other.of_people,
        )


def total_spent(store: Store, wanted: PositionSet, planned: Charge | None = None) -> LedgerTotal:
    """What the records at the wanted positions have spent, or will have when `planned` is released."""
    counts = Counter[History]()
    for chunk, mask in wanted.masks():
        index, histories = coverage.chunk_histories(store, chunk)
        for number in np.flatnonzero(many := np.bincount(index[mask], minlength=len(histories))).tolist():
            counts[histories[number]] += int(many[number])
    releases = releases_by_number(store, {entry for history in counts for entry in history})
    series = None if planned is None else planned.series
    own = {sequence for sequence, entry in releases.items() if entry.series == series}
    found = LedgerTotal()
    for history, count in counts.items():
        parts: list[Charge] = [releases[entry] for entry in history]
        if planned is not None and not own.intersection(history):
            parts.append(planned)
        found = found.joined(total_of(parts, count))
    return found


class ReleasesOfEach:
    """Under which releases each record went out: histories, and by position the index of each record's."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._entries = {entry.sequence: entry for entry in ledger.read_entries(store) if entry.is_release}
        self._numbers: dict[History, int] = {(): 0}

    def by_chunk(self) -> Iterator[npt.NDArray[np.uint32]]:
        """The index of the history of each record, chunk by chunk."""
        records = count_records(self._store)
        for chunk in range(chunk_count(records)):
            index, found = coverage.chunk_histories(self._store, chunk)
            numbers = [self._numbers.setdefault(history, len(self._numbers)) for history in found]
            yield np.array(numbers, np.uint32)[index[: records - chunk * CHUNK]]

    def histories(self) -> list[Releases]:
        """The histories of the chunks that were asked for; the first has no releases."""
        return [tuple(self._entries[entry] for entry in history) for history in self._numbers]


def ways_out(store: Store) -> list[tuple[Releases, int]]:
    """Under which releases records went out, and how many went out like that; memory is bounded."""
    found, counts = ReleasesOfEach(store), Counter[int]()
    for index_of in found.by_chunk():
        numbers, many = np.unique(index_of, return_counts=True)
        counts.update(dict(zip(numbers.tolist(), many.tolist(), strict=True)))
    return [(history, counts[number]) for number, history in enumerate(found.histories()) if counts[number]]


def releases_of_each(store: Store) -> tuple[npt.NDArray[np.uint32], list[Releases]]:
    """For each record, by position, the index of its releases in the list that is returned too; the first has none."""
    found = ReleasesOfEach(store)
    index_of = np.concatenate([np.zeros(0, np.uint32), *found.by_chunk()])
    return index_of, found.histories()


class Holdings(NamedTuple):
    """Which records a vault has, and under which releases each of them went out."""

    records_key: tuple[str, ...]
    """Equal for vaults that hold the same records in the same order: the digests of the ids that were added."""
    history_of: npt.NDArray[np.uint32]
    """For each record, by position, the index of its releases."""
    histories: list[Releases]


def holdings(store: Store) -> Holdings:
    """What a vault has in one state."""
    own = (entry.details for entry in ledger.read_entries(store) if entry.details.get("label") == store.label)
    added = (details for details in own if "units_digest" in details)
    return Holdings(tuple(details["ids_digest"] for details in added if details["records"]), *releases_of_each(store))


def total_of(parts: Iterable[Charge], records: int) -> LedgerTotal:
    """What all of these releases together cost the same records."""
    parts = list(parts)
    spent = compose(part.cost for part in parts)
    return LedgerTotal(spent.epsilon, spent.delta, all(part.private for part in parts), records)
