"""Verification: recompute everything the ledger claims and say, a sentence each, what does not hold."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism, from_spec
from tpsl.progress import Progress, no_progress
from tpsl.vault import coverage, id_index, ledger
from tpsl.vault.agreement import labels_of
from tpsl.vault.blocks import CHUNK, Block, chunk_count, count_records, read_block
from tpsl.vault.cost import times
from tpsl.vault.errors import VaultError
from tpsl.vault.ledger import Entry, Series
from tpsl.vault.storage import DATABASE
from tpsl.vault.store import Store
from tpsl.vault.stored_outcomes import CANNOT_SEE, StoredOutcomes
from tpsl.vault.texts import TextDigest, Texts
from tpsl.vault.verifying_statistics import NOISE_NOT_TESTED, statistic_problems


def verify(store: Store, progress: Progress = no_progress) -> list[str]:
    """All problems of the vault; an empty list means that it is sound."""
    problems = [*_permissions(store.folder), *_length(store), *_integrity(store)]
    entries, chain = _chain(store)
    problems += chain + _labels(store, entries)
    for row in labels_of(store).values():
        own = [entry for entry in entries if entry.details.get("label") == row.number]
        problems += _contents(replace(store, label=row.number), row.classes, own, progress)
    return problems + _strays(store)


def _labels(store: Store, entries: list[Entry]) -> list[str]:
    """What is wrong with the labels that the vault has, according to its ledger."""
    stated = [entry.details for entry in entries if entry.kind in ("created", "label")]
    said = [(part["label"], part["name"], part["classes"], bool(part.get("counts_people"))) for part in stated]
    if said != [tuple(row) for row in labels_of(store).values()]:
        return ["the labels of the vault, their names or their classes are not those of its ledger"]
    return []


def _strays(store: Store) -> list[str]:
    """Rows of a label that the vault does not have."""
    return [
        f"{table} of a label are stored, but the vault has no such label"
        for table in ("blocks", "outcomes", "id_index")
        if store.execute(
            f"SELECT 1 FROM {table} WHERE label NOT IN (SELECT number FROM labels) LIMIT 1"  # noqa: S608
        ).fetchone()
    ]


def cannot_see(store: Store) -> list[str]:
    """What no verification of this vault can find, a sentence each."""
    entries = list(ledger.read_entries(store))
    changed, has_statistics = _changed_after_release(entries), any(entry.kind == "statistic" for entry in entries)
    sentences = [CANNOT_SEE]
    if has_statistics:
        sentences.append(NOISE_NOT_TESTED)
    if changed:
        sentences.append(
            f"{changed:,} labels were changed after their release, and the vault does not keep the labels they had: "
            f"the tests of the noise allow for any {changed:,} records"
        )
    return sentences


def require_unchanged_labels(store: Store) -> None:
    """Raise a `VaultError` if labels were changed after a release: noise cannot be told from such a change."""
    changed = _changed_after_release(list(ledger.read_entries(store)))
    if changed:
        raise VaultError(f"{changed:,} labels were changed after their release, so the noise cannot be computed")


def _changed_after_release(entries: list[Entry]) -> int:
    return sum(int(entry.details["labels_changed_after_release"]) for entry in entries if entry.kind == "added")


def _permissions(folder: Path) -> list[str]:
    return [
        f"{path} can be {'changed' if mode & 0o022 else 'read'} by others (mode {mode & 0o777:o}); it holds true "
        f"labels and must be its owner's only: chmod go= {path}"
        for path in (folder, folder / DATABASE)
        if (mode := path.stat().st_mode) & 0o077
    ]


def _length(store: Store) -> list[str]:
    pages, size = (store.execute(f"PRAGMA page_{what}").fetchone()[0] for what in ("count", "size"))
    actual = (store.folder / DATABASE).stat().st_size
    if actual >= pages * size:
        return []
    return [f"the database file is truncated: it has {actual} bytes instead of {pages * size}"]


def _integrity(store: Store) -> list[str]:
    rows = [text for (text,) in store.execute("PRAGMA integrity_check(5)")]
    return [f"the database file is damaged: {' '.join(text.split())}" for text in rows if text != "ok"]


def _chain(store: Store) -> tuple[list[Entry], list[str]]:
    """The readable entries, and what is wrong with the chain."""
    entries, problems, previous = [], [], ledger.FIRST_PREVIOUS
    rows = store.execute("SELECT sequence, hash, body FROM ledger ORDER BY sequence").fetchall()
    for expected, (sequence, stored, body) in enumerate(rows, 1):
        if sequence != expected:
            problems.append(f"ledger entry {expected} is missing: the next one has number {sequence}")
        if ledger.hash_of(str(body)) != stored:
            problems.append(f"ledger entry {sequence} was changed: its contents do not have the hash stored with it")
        try:
            entry = ledger.parse(sequence, stored, body)
        except VaultError as error:
            problems.append(str(error))
            previous = stored
            continue
        if entry.previous != previous:
            problems.append(f"ledger entry {sequence} does not follow the entry before it: the chain is broken there")
        previous = stored
        entries.append(entry)
    if not entries or entries[0].kind != "created":
        problems.append("the ledger does not begin with the creation of the vault")
    return entries, problems


@dataclass
class _Release:
    """A ledger entry of a release, and what its stored rows add up to. A statistic has no mechanism and no outcomes."""

    entry: Entry
    mechanism: Mechanism | None = None
    ids: TextDigest = field(default_factory=TextDigest)
    outcomes: Any = field(default_factory=hashlib.sha256)
    records: int = 0

    def problems(self) -> list[str]:
        details, place = self.entry.details, f"release {self.entry.sequence}"
        found = []
        if self.records != details["records"]:
            found.append(f"{place} covers {self.records} records, but its ledger entry says {details['records']}")
        if self.ids.hexdigest() != details["ids_digest"]:
            found.append(f"{place}: the ids of the records it covers are not those of its ledger entry")
        if self.mechanism is not None and self.outcomes.hexdigest() != details["outcomes_digest"]:
            found.append(f"{place}: its noisy labels were changed, they do not have the digest of its ledger entry")
        return found


def _rebuilt(entries: list[Entry]) -> tuple[dict[int, _Release], list[str]]:
    """Each release with its mechanism rebuilt from the spec, and where claims about mechanisms do not hold."""
    releases, problems = {}, []
    built: dict[str, Mechanism] = {}
    for entry in entries:
        if entry.kind == "statistic":
            releases[entry.sequence] = _Release(entry)
        if entry.kind != "released":
            continue
        details, place = entry.details, f"release {entry.sequence}"
        try:
            spec = entry.series.spec
            mechanism = built[spec] = built.get(spec) or from_spec(details["mechanism"])
        except (ValueError, TypeError) as error:
            problems.append(f"{place}: its mechanism cannot be built: {error}")
            continue
        releases[entry.sequence] = _Release(entry, mechanism)
        if mechanism.digest != details["table_digest"]:
            problems.append(f"{place}: the table of {mechanism} is not the one it was drawn from")
        claimed = (times(mechanism.epsilon, details["draws"]), times(mechanism.delta, details["draws"]))
        if claimed != (entry.epsilon, entry.delta):
            problems.append(
                f"{place}: its ledger entry says epsilon {entry.epsilon} and delta {entry.delta}, "
                f"but {mechanism} with {details['draws']} draws has {claimed[0]} and {claimed[1]}"
            )
        if (details["noise"] == "secure") != (details["seed"] is None):
            problems.append(f"{place}: its ledger entry contradicts itself on whether its noise was seeded")
    return releases, problems


def _contents(store: Store, classes: int, entries: list[Entry], progress: Progress) -> list[str]:
    """One pass over records and outcomes of a label, chunk by chunk, against what the ledger says of them."""
    releases, problems = _rebuilt(entries)
    problems += statistic_problems(store, [entry for entry in entries if entry.kind == "statistic"], classes)
    additions = Additions([entry for entry in entries if entry.kind == "added"])
    noise, index = StoredOutcomes(_changed_after_release(entries)), id_index.IndexCheck(store)
    records = count_records(store)
    (last,) = store.execute("SELECT MAX(chunk) FROM outcomes WHERE label = ?", (store.label,)).fetchone()
    for chunk in range(max(chunk_count(records), -1 if last is None else int(last) + 1)):
        start, block = chunk * CHUNK, Block(Texts.of([]), np.zeros(0, np.int64), None)
        try:
            block = read_block(store, chunk) if start < records else block
            if len(block) != max(0, min(CHUNK, records - start)):
                raise VaultError(f"records are missing between positions {start} and {start + CHUNK}")
        except VaultError as error:
            return [*problems, str(error)]
        bad = np.flatnonzero(block.labels >= classes)
        if bad.size:
            first = start + int(bad[0])
            problems.append(f"{bad.size} records have a label outside 0..{classes - 1}, the first at position {first}")
        additions.take(block)
        index.take(block.ids)
        problems += _chunk(store, chunk, block, releases, None if bad.size else noise)
        progress(min(start + CHUNK, records), records, "checking records")
    problems += additions.problems() + index.problems(store) + noise.problems()
    return problems + [problem for release in releases.values() for problem in release.problems()]


def _chunk(
    store: Store,
    chunk: int,
    block: Block,
    releases: dict[int, _Release],
    noise: StoredOutcomes | None,
) -> list[str]:
    """Check the outcomes of one chunk and feed the running digests of their releases and the tests of their noise."""
    problems = []
    covered: dict[Series, coverage.Mask] = {}
    stored = store.execute(
        "SELECT entry, covered, outcomes FROM outcomes WHERE label = ? AND chunk = ? ORDER BY entry",
        (store.label, chunk),
    )
    for sequence, bitmap, blob in stored:
        place = f"release {sequence}, chunk {chunk}"
        release = releases.get(sequence)
        if release is None:
            problems.append(f"{place}: noisy labels are stored, but the ledger has no readable entry for them")
            continue
        try:
            mask = coverage.unpack(bitmap)
        except (VaultError, TypeError) as error:
            problems.append(f"{place}: {error}")
            continue
        places = np.flatnonzero(mask)
        release.records += len(places)
        if places.size and places[-1] >= len(block):
            problems.append(f"{place}: it covers positions that hold no record")
            continue
        release.ids.update(block.ids.take(mask[: len(block)]))
        problems += _outcomes(chunk, release, places, blob, block.labels, noise)
        before = covered.setdefault(release.entry.series, np.zeros(CHUNK, np.bool_))
        if (before & mask).any():
            problems.append(f"{place}: {int((before & mask).sum())} records have two noisy labels of the same series")
        before |= mask
    return problems


def _outcomes(
    chunk: int,
    release: _Release,
    places: npt.NDArray[np.intp],
    blob: bytes,
    labels: npt.NDArray[np.int64],
    noise: StoredOutcomes | None,
) -> list[str]:
    """Check the outcomes that a release of noisy labels gave to the records at these places of a chunk."""
    place, mechanism = f"release {release.entry.sequence}, chunk {chunk}", release.mechanism
    if mechanism is None:
        return [f"{place}: noisy labels are stored, but the release is a statistic"] if blob else []
    release.outcomes.update(blob)
    try:
        outcomes = coverage.decode_outcomes(blob, mechanism, release.entry.details["draws"], len(places))
    except (VaultError, TypeError) as error:
        return [f"{place}: {error}"]
    if outcomes.size and int(outcomes.max()) >= mechanism.outcomes:
        return [f"{place}: an outcome is outside the table of {mechanism}"]
    if noise is not None:
        noise.take(chunk, release.entry, mechanism, places, labels[places], outcomes)
    return []


class Additions:
    """The `added` entries, compared with the ids and units of the records they brought."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = [entry for entry in entries if entry.details.get("records")]
        self._found: list[str] = []
        self._begin()

    def _begin(self) -> None:
        self._left = int(self._entries[0].details["records"]) if self._entries else 0
        self._ids, self._units = TextDigest(), TextDigest()

    def take(self, records: Block) -> None:
        """Take in the next records."""
        while len(records) and self._entries:
            taken = records.part(0, min(len(records), self._left))
            self._ids.update(taken.ids)
            self._units.update(Texts.empty(len(taken)) if taken.units is None else taken.units)
            records = records.part(len(taken), len(records))
            self._left -= len(taken)
            if not self._left:
                self._finish(self._entries.pop(0))
                self._begin()
        if len(records):
            self._found.append(f"{len(records)} records are in the vault that no ledger entry added")

    def _finish(self, entry: Entry) -> None:
        if self._ids.hexdigest() != entry.details["ids_digest"]:
            self._found.append(f"the ids of the records added by ledger entry {entry.sequence} were changed")
        units = entry.details["units_digest"]
        if units is not None and self._units.hexdigest() != units:
            self._found.append(f"the units of the records added by ledger entry {entry.sequence} were changed")

    def problems(self) -> list[str]:
        """What does not hold, a sentence each, once all records were taken in."""
        if self._entries:
            self._found.append(f"records added by ledger entry {self._entries[0].sequence} are missing from the vault")
        return self._found
