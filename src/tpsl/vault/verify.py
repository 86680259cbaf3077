"""Verification: recompute everything the ledger claims and say, a sentence each, what does not hold."""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism, from_spec, noise_from_spec
from tpsl.progress import Progress, no_progress
from tpsl.vault import coverage, id_index, ledger
from tpsl.vault.blocks import CHUNK, Block, chunk_count, count_records, read_block
from tpsl.vault.cost import Planned, PlannedStatistic, Series, StatisticPlan
from tpsl.vault.errors import VaultError
from tpsl.vault.ledger import Entry
from tpsl.vault.noise_tests import StoredNoise, Tested, accusations, level_at
from tpsl.vault.releasing import decode_values, read_values
from tpsl.vault.same_labels import labels_of
from tpsl.vault.storage import DATABASE
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

_UNSEEN = (
    "the noise was tested as a whole: verification cannot see a few records without noise (about one in a hundred) "
    "in a single release, noise whose key somebody else knows, copies of this vault, or entries cut off at the end of "
    "the ledger; `tpsl audit` finds the first"
)
_UNTESTED_STATISTICS = (
    "the noise of statistics was not tested: that takes the vectors they were summed from, which the vault does not "
    "keep; whoever has them can ask Vault.statistic_problems"
)


def verify(store: Store, progress: Progress = no_progress) -> list[str]:
    """All problems of the vault; an empty list means that it is sound. The same vault always gives the same list.

    Sound noise is accused with probability at most `noise_tests.LEVEL` in the life of a vault: the tests of all labels
    and releases are counted together (Bonferroni), and each state of the ledger has a part of the level (`level_at`).
    """
    entries, problems = _chain(store)
    problems = _file(store) + problems + _labels(store, entries)
    tested: list[Tested] = []
    for row in labels_of(store).values():
        own = _about(entries, row.number)
        problems += _contents(replace(store, label=row.number), row.classes, own, tested, progress)
    return problems + accusations(tested, level_at(max(1, len(entries))))


def _about(entries: list[Entry], label: int) -> list[Entry]:
    return [entry for entry in entries if entry.details.get("label") == label]


def _labels(store: Store, entries: list[Entry]) -> list[str]:
    """Where the vault has other labels than its ledger says, or rows of no label or release that it knows."""
    stated = [entry.details for entry in entries if entry.kind in ("created", "label")]
    said = [(part["label"], part["name"], part["classes"], bool(part.get("counts_people"))) for part in stated]
    problems = []
    if said != [tuple(row) for row in labels_of(store).values()]:
        problems.append("the labels of the vault, their names or their classes are not those of its ledger")
    for table in ("blocks", "outcomes", "id_index"):
        query = f"SELECT 1 FROM {table} WHERE label NOT IN (SELECT number FROM labels) LIMIT 1"  # noqa: S608
        if store.execute(query).fetchone():
            problems.append(f"{table} of a label are stored, but the vault has no such label")
    stored = {sequence for (sequence,) in store.execute("SELECT entry FROM statistics")}
    strays = stored - {entry.sequence for entry in entries if entry.kind == "statistic"}
    return problems + [f"release {number}: a statistic is stored without a ledger entry" for number in sorted(strays)]


def cannot_see(store: Store) -> list[str]:
    """What no verification of this vault can find, a sentence each."""
    entries = list(ledger.read_entries(store))
    changed, has_statistics = _changed_after_release(entries), any(entry.kind == "statistic" for entry in entries)
    sentences = [_UNSEEN]
    if has_statistics:
        sentences.append(_UNTESTED_STATISTICS)
    if changed:
        sentences.append(
            f"{changed:,} labels were changed after their release, and the vault does not keep the labels they had: "
            f"the tests of the noise allow for any {changed:,} records"
        )
    return sentences


def require_unchanged_labels(store: Store) -> None:
    """Raise a `VaultError` if values of this label were changed after a release: noise cannot be told from a change."""
    changed = _changed_after_release(_about(list(ledger.read_entries(store)), store.label))
    if changed:
        raise VaultError(f"{changed:,} labels were changed after their release, so the noise cannot be computed")


def _changed_after_release(entries: list[Entry]) -> int:
    return sum(int(entry.details["labels_changed_after_release"]) for entry in entries if entry.kind == "added")


def _file(store: Store) -> list[str]:
    """What is wrong with the vault's file: who can reach it, its length, its structure."""
    problems = [
        f"{path} can be {'changed' if mode & 0o022 else 'read'} by others (mode {mode & 0o777:o}); it holds true "
        f"labels and must be its owner's only: chmod go= {path}"
        for path in (store.folder, store.folder / DATABASE)
        if (mode := path.stat().st_mode) & 0o077
    ]
    pages, size = (store.execute(f"PRAGMA page_{what}").fetchone()[0] for what in ("count", "size"))
    actual = (store.folder / DATABASE).stat().st_size
    if actual < pages * size:
        problems.append(f"the database file is truncated: it has {actual} bytes instead of {pages * size}")
    rows = [text for (text,) in store.execute("PRAGMA integrity_check(5)")]
    return problems + [f"the database file is damaged: {' '.join(text.split())}" for text in rows if text != "ok"]


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
    """A ledger entry of a release, what was asked for according to it, and what its stored rows add up to."""

    entry: Entry
    planned: Planned | PlannedStatistic
    series: int
    """The number of its series: the first entry of it."""
    ids: Any = field(default_factory=hashlib.sha256)  # hashlib gives its objects no public type
    outcomes: Any = field(default_factory=hashlib.sha256)
    records: int = 0

    @property
    def mechanism(self) -> Mechanism | None:
        """None for a statistic, which has no outcomes."""
        return self.planned.mechanism if isinstance(self.planned, Planned) else None

    def problems(self, store: Store, classes: int) -> list[str]:
        """What is wrong with it once all rows were read, a sentence each; its label has this number of classes."""
        details, planned, found = self.entry.details, self.planned, list[str]()
        if isinstance(planned, Planned):
            claimed, noise = planned.details(), f"{planned.mechanism} with {planned.draws} draws"
            if self.outcomes.hexdigest() != details["outcomes_digest"]:
                found.append("its noisy labels were changed, they do not have the digest of its ledger entry")
        else:
            claimed, noise = planned.details(), str(planned.plan.noise)
            found += _values(store, self.entry, planned, classes)
        for name in ("table_digest", "noise_digest", "epsilon", "delta", "rho", "noise"):
            if details.get(name) != claimed.get(name):
                found.append(f"its ledger entry says {name} {details[name]!r}, but {noise} has {claimed[name]!r}")
        if self.records != details["records"]:
            found.append(f"it covers {self.records} records, but its ledger entry says {details['records']}")
        if self.ids.hexdigest() != details["ids_digest"]:
            found.append("the ids of the records it covers are not those of its ledger entry")
        return [f"release {self.entry.sequence}: {problem}" for problem in found]


def _values(store: Store, entry: Entry, planned: PlannedStatistic, classes: int) -> list[str]:
    """What is wrong with the stored numbers of a statistic."""
    blob = read_values(store, entry)
    if not blob:
        return ["the numbers of its statistic are missing"]
    if planned.classes != classes:
        return [f"its ledger entry speaks of {planned.classes} classes, but the labels have {classes}"]
    try:
        decode_values(blob, planned.plan.shape(classes))
    except VaultError as error:
        return [str(error)]
    if hashlib.sha256(blob).hexdigest() != entry.details["values_digest"]:
        return ["its noisy statistic was changed, it does not have the digest of its ledger entry"]
    return []


def _releases(entries: list[Entry], classes: int, problems: list[str]) -> dict[int, _Release]:
    """The releases among these entries with what they claim rebuilt; one that cannot be rebuilt is a problem."""
    releases = {}
    built: dict[Series, Planned] = {}
    numbers: dict[Series, int] = {}
    for entry in entries:
        details, series = entry.details, entry.series if entry.is_release else None
        try:
            if entry.kind == "statistic":
                noise = noise_from_spec(details["mechanism"])
                plan = StatisticPlan(noise, details["bound"], details["width"], details["seed"], details["releases"])
                releases[entry.sequence] = _Release(entry, PlannedStatistic(plan, details["classes"]), entry.sequence)
            elif series is not None:
                if series not in built:
                    built[series] = Planned(from_spec(details["mechanism"]), details["draws"], details["seed"])
                if built[series].mechanism.classes != classes:
                    raise VaultError(f"its mechanism {built[series].mechanism} is not for labels of {classes} classes")
                number = numbers.setdefault(series, entry.sequence)
                releases[entry.sequence] = _Release(entry, built[series], number)
        except (ValueError, TypeError) as error:
            problems.append(f"release {entry.sequence}: {error}")
    return releases


def _contents(store: Store, classes: int, entries: list[Entry], tested: list[Tested], progress: Progress) -> list[str]:
    """One pass over records and outcomes of a label, chunk by chunk, against what the ledger says of them.

    What the tests of the noise have found is appended to `tested`.
    """
    problems: list[str] = []
    releases = _releases(entries, classes, problems)
    noise, additions, indexed = StoredNoise(_changed_after_release(entries)), _Additions(entries), True
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
        additions.take(block)
        indexed &= not len(block) or id_index.is_index_of(store, chunk, block.ids)
        outcomes = _checked_outcomes(store, chunk, block, releases, problems)
        bad = np.flatnonzero(block.labels >= classes)
        if bad.size:
            first = start + int(bad[0])
            problems.append(f"{bad.size} records have a label outside 0..{classes - 1}, the first at position {first}")
            list(outcomes)
        else:
            noise.take(chunk, block.labels, outcomes)
        progress(min(start + CHUNK, records), records, "checking records")
    tested += noise.tested()
    problems += additions.problems()
    if not indexed:
        problems.append("the index of the record ids is not that of the ids, so some may not be found, or occur twice")
    return problems + [text for release in releases.values() for text in release.problems(store, classes)]


def _checked_outcomes(
    store: Store, chunk: int, block: Block, releases: Mapping[int, _Release], problems: list[str]
) -> Iterator[tuple[Entry, Mechanism, npt.NDArray[np.intp], npt.NDArray[Any]]]:
    """Check the outcomes of one chunk, feed the digests of their releases, and yield what the noise is tested by."""
    try:
        stored = coverage.read_chunk(store, chunk, outcomes=True)
    except VaultError as error:
        problems.append(f"chunk {chunk}: {error}")
        return
    covered: dict[int, npt.NDArray[np.bool_]] = {}
    for row in stored:
        try:
            if row.entry not in releases:
                raise VaultError("noisy labels are stored, but the ledger has no readable entry for them")
            release, rows = releases[row.entry], row.places
            release.records += len(rows)
            if row.series != release.series:
                raise VaultError("it is stored with releases of another series")
            if rows[-1] >= len(block):
                raise VaultError("it covers positions that hold no record")
            release.ids.update(block.ids.take(rows).to_bytes())
            release.outcomes.update(row.outcomes)
            before = covered.setdefault(row.series, np.zeros(len(block), np.bool_))
            if before[rows].any():
                raise VaultError(f"{int(before[rows].sum())} records have two noisy labels of the same series")
            before[rows] = True
            mechanism = release.mechanism
            if mechanism is None and row.outcomes:
                raise VaultError("noisy labels are stored, but the release is a statistic")
            if mechanism is not None:
                outcomes = row.decoded(mechanism, release.entry.details["draws"])
                if int(outcomes.max()) >= mechanism.outcomes:
                    raise VaultError(f"an outcome is outside the table of {mechanism}")
                yield release.entry, mechanism, rows, outcomes
        except VaultError as error:
            problems.append(f"release {row.entry}, chunk {chunk}: {error}")


class _Additions:
    """The `added` entries, compared with the ids and units of the records they brought."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = deque(entry for entry in entries if entry.kind == "added" and entry.details["records"])
        self._taken, self._ids, self._units = 0, hashlib.sha256(), hashlib.sha256()
        self._found: list[str] = []

    def take(self, records: Block) -> None:
        """Take in the next records."""
        while len(records) and self._entries:
            left = self._entries[0].details["records"] - self._taken
            part, records = (
                records.part(0, min(len(records), left)),
                records.part(min(len(records), left), len(records)),
            )
            self._taken += len(part)
            self._ids.update(part.ids.to_bytes())
            self._units.update((Texts.empty(len(part)) if part.units is None else part.units).to_bytes())
            if len(part) == left:
                self._finish(self._entries.popleft())
        if len(records):
            self._found.append(f"{len(records)} records are in the vault that no ledger entry added")

    def _finish(self, entry: Entry) -> None:
        """Compare the records of one entry, and begin with those of the next."""
        for what, digest in (("ids", self._ids), ("units", self._units)):
            if entry.details[f"{what}_digest"] not in (None, digest.hexdigest()):
                self._found.append(f"the {what} of the records added by ledger entry {entry.sequence} were changed")
        self._taken, self._ids, self._units = 0, hashlib.sha256(), hashlib.sha256()

    def problems(self) -> list[str]:
        """What does not hold, a sentence each, once all records were taken in."""
        if self._entries:
            self._found.append(f"records added by ledger entry {self._entries[0].sequence} are missing from the vault")
        return self._found
