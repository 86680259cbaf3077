"""What a run's labels have spent in all, by the ledger of its vault and by what runs remember of vaults.

A run notes the vault that it has released from: its place, its identity, and what the records had spent. A vault that
was deleted adds nothing up any more, but what it has released stays released: so the notes count.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, reduce
from pathlib import Path
from typing import Any

from tpsl.net.messages import LABEL_PARTY
from tpsl.report.run_view import VaultFacts
from tpsl.report.words import rounded_up, time_text
from tpsl.run.job import Job
from tpsl.run.result import LedgerNote, TrainResult
from tpsl.run.run_folder import RunFolder
from tpsl.vault import Ledger, Spent, Vault, VaultError, the_vault
from tpsl.vault.cost import as_json
from tpsl.vault.ledger import describe_release
from tpsl.vault.place import address_of, is_vault
from tpsl.vault.storage import DATABASE

_HEADER = 100  # bytes of an SQLite file
_DEEPEST = 4  # folders below the watched one: `runs/paper/flights/seed-1` is found
_LEFT_BY_A_RUN = (".lock", "result.json")


@dataclass(frozen=True, kw_only=True)
class RunLedger(VaultFacts):
    """What is known of a run's vault, and of others that have released its labels and are gone."""

    content: Ledger | None = None
    note: str = ""
    """Why there is no ledger, or nothing."""
    total: Spent | None = None
    """What the run's records have spent in all; None if nothing was released yet."""

    def known(self) -> dict[str, Any]:
        """Return what is to be known besides the total, ready for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(VaultFacts)}


def read_ledger(run: RunFolder, job: Job, memory: Memory | None = None) -> RunLedger:
    """Read the ledger of a run's vault as it is now, so that a later release shows; else what the run has noted.

    Vaults that are gone count with what was noted of them, by the run, and by the others that `memory` knows.
    """
    memory = memory or Memory.of([run.path])
    noted, total, ledger = run.noted_ledger(), memory.own(run), ledger_at(memory.place(run))
    besides, gone = memory.besides(run)
    if ledger is not None and noted is None:
        total = spent_in(run, ledger, {_description(job, ledger.classes)})
    total = total.plus(besides) if total else None
    if ledger is None:
        return RunLedger(note=_absent(noted), total=total, gone_vaults=gone)
    return RunLedger(
        content=ledger,
        total=total,
        gone_vaults=gone,
        epsilon_all_labels=as_json(ledger.all_labels.epsilon) if ledger.all_labels else None,
        apart=ledger.apart,
    )


def result_now(run: RunFolder, result: TrainResult) -> tuple[TrainResult, RunLedger]:
    """Return a run's result with what its records have spent by now, and what is known of its vault.

    Others may have released from its vault since. A vault that cannot be read at this moment leaves the totals as the
    run has noted them at its end.
    """
    try:
        found = read_ledger(run, run.job()) if run.noted_ledger() else RunLedger()
    except VaultError:
        found = RunLedger()
    if found.total is None:
        return result, found
    total = found.total.joined(Spent(result.total_epsilon, result.total_delta, result.private))
    result = replace(result, total_epsilon=total.epsilon, total_delta=total.delta, private=total.private)
    return result, found


def vault_label(vault: Path) -> str:
    """Return the end of a vault's path, which tells it from others: no page says where the label party's files are."""
    in_run = vault.parts[-3:-1] == ("label", "vault")
    return "/".join(vault.parts[-4 if in_run else -2 :])


def _description(job: Job, classes: int) -> str:
    """Return what a run releases, in the words of the ledger."""
    privacy = job.privacy
    return describe_release(str(privacy.build(classes)), privacy.draws, privacy.noise_seed) if job.releases else ""


def _absent(noted: LedgerNote | None) -> str:
    if noted is None:
        return "The vault is not in this run’s folder, and the run has noted no other."
    time, epsilon, delta = time_text(noted.time), rounded_up(noted.epsilon, 4), rounded_up(noted.delta, 2)
    return (
        f"The vault {vault_label(noted.vault)} is gone; `tpsl vault move` moves one so that it is found. At {time} UTC "
        f"the run noted ε = {epsilon}, δ = {delta} for its records, and the ledger’s head {noted.head}."
    )


# ---- what runs remember of vaults


class Memory:
    """The notes of some runs, and the vaults that there are: those of the notes, and the label party's one."""

    def __init__(self, notes: Mapping[Path, LedgerNote | None]) -> None:
        self._read = notes
        self._notes = {path: note for path, note in notes.items() if note and not note.scratch}
        folders = [note.vault.parent for note in self._notes.values()]
        with suppress(VaultError):  # a damaged note of where it is concerns those who release from it
            folders.append(the_vault())
        self._folders = list(dict.fromkeys(folder for folder in folders if is_vault(folder)))
        self._places: dict[tuple[Path, str], Path | None] = {}
        self._groups: dict[Path, str | None] = {}

    @classmethod
    def of(cls, runs: Iterable[Path]) -> Memory:
        """What these runs remember, and those beside them in the same folders."""
        given = list(runs)
        beside = (run for folder in {run.resolve().parent for run in given} for run in runs_in(folder, 1))
        return cls({run: note_of(run) for run in (*given, *beside)})

    def place(self, run: RunFolder) -> Path | None:
        """Return where the label is now that a run has released; None if the run's vault is gone."""
        noted = self._note_of(run)
        return run.vault() if noted is None else self._where(noted)

    def own(self, run: RunFolder) -> Spent | None:
        """Return what a run's records have spent by its vault; None if nothing was noted.

        It is what the vault says now. A vault that is gone, or that was restored from a backup, has forgotten releases:
        what runs on the same data have noted of these stays spent.
        """
        own = self._note_of(run)
        if own is None:
            return None
        place = self._where(own)
        ledger = ledger_at(place)
        known = {entry.hash for entry in ledger.entries} if ledger is not None else set()
        parts = [
            _noted(note)
            for path, note in self._notes.items()
            if note.identity == own.identity and note.head not in known and self._same_data(run.path, path)
        ]
        return reduce(Spent.joined, parts, total_of(run, own, place))

    def besides(self, run: RunFolder) -> tuple[Spent, int]:
        """Return what a run's labels have spent that its own vault does not know of, and how many vaults are gone.

        That is what runs on the same data have noted of vaults that are gone; and if the run's own vault is gone, what
        the others have released. Notes of scratch runs count nowhere.
        """
        own = self._note_of(run)
        if own is None or own.scratch:
            return Spent(), 0
        is_gone = self._where(own) is None
        found, gone = dict[str, Spent](), {own.identity} if is_gone else set()
        for path, note in self._notes.items():
            identity, place = note.identity, self._where(note)
            if identity == own.identity or not (is_gone or place is None) or not self._same_data(run.path, path):
                continue
            found[identity] = total_of(RunFolder(path), note, place).joined(found.get(identity, Spent()))
            gone |= {identity} if place is None else set()
        return reduce(Spent.plus, found.values(), Spent()), len(gone)

    @cached_property
    def version(self) -> str:
        """Differs whenever what `besides` says of any run may; empty while no vault is gone."""
        gone = [note for note in self._notes.values() if self._where(note) is None]
        return repr((gone, [_version_of(folder) for folder in self._folders])) if gone else ""

    def _note_of(self, run: RunFolder) -> LedgerNote | None:
        return self._read.get(run.path) or run.noted_ledger()

    def _where(self, note: LedgerNote) -> Path | None:
        """Return where the label is; a vault that cannot be read now is the noted one if it is at that place."""
        key = note.vault, note.identity
        if key not in self._places:
            self._places[key] = None
            for folder in dict.fromkeys([note.vault.parent, *self._folders]):
                expected = (note.identity, None) if folder == note.vault.parent else (note.identity,)
                if is_vault(folder) and _identity_of(folder) in expected:
                    self._places[key] = folder / note.vault.name
                    break
        return self._places[key]

    def _same_data(self, run: Path, other: Path) -> bool:
        for path in (run, other):
            if path not in self._groups:
                self._groups[path] = None
                with suppress(ValueError, OSError):  # a job that cannot be read is reported with its run
                    self._groups[path] = data_group(RunFolder(path).job())
        return self._groups[run] == self._groups[other] is not None


def data_group(job: Job) -> str:
    """Return what is equal for jobs on the same data."""
    return hashlib.sha256(repr(sorted(job.agreed()["data"].items())).encode()).hexdigest()[:16]


def note_of(run: Path) -> LedgerNote | None:
    """Return what a run has noted of its vault, None if that cannot be read: it is reported with the run."""
    try:
        return RunFolder(run).noted_ledger()
    except ValueError:
        return None


def total_of(run: RunFolder, note: LedgerNote, place: Path | None) -> Spent:
    """Return what a run's records have spent by its vault: as that says now, and never less than was noted."""
    ledger, released = ledger_at(place), {note.release, *note.statistics}
    now = spent_in(run, ledger, released) if ledger is not None else None
    return now.joined(_noted(note)) if now is not None else _noted(note)


def _noted(note: LedgerNote) -> Spent:
    return Spent(note.epsilon, note.delta, note.private)


def spent_in(run: RunFolder, ledger: Ledger, released: set[str]) -> Spent | None:
    """Return the most that any record has spent in all which had a release of the run; None if none had.

    In a vault that counts people it is the most that anybody has spent. Where the run started from another one, labels
    of other releases are in its weights, and it is the most of all records.
    """
    of_all = run.origin(LABEL_PARTY) is not None
    parts = [part for part in ledger.spent if of_all or released & set(part.released_under)]
    found = reduce(Spent.joined, parts) if parts else None
    person = ledger.largest_unit if found and ledger.counts_people else None
    return found.joined(replace(person, records=0)) if found and person else found


def ledger_at(address: Path | None) -> Ledger | None:
    """Return the ledger of a label as it is now, None where there is none; read again only if its file has changed."""
    folder = address_of(address).folder if address is not None else None
    return _read_ledger(address, _version_of(folder)) if address and folder and is_vault(folder) else None


@lru_cache(maxsize=64)
def _read_ledger(address: Path, version: tuple[object, ...]) -> Ledger | None:
    """`version` differs whenever the file does: SQLite counts the transactions in its header."""
    if not Vault.exists(address):
        return None
    with Vault.open(address) as opened:
        return opened.ledger()


def _version_of(folder: Path) -> tuple[object, ...]:
    try:
        with (folder / DATABASE).open("rb") as file:
            header, state = file.read(_HEADER), os.fstat(file.fileno())
    except OSError as error:
        raise VaultError(f"vault {folder} cannot be read ({error.strerror})") from error
    return state.st_ino, state.st_size, state.st_mtime_ns, header


def _identity_of(folder: Path) -> str | None:
    """Return the identity of the vault in a folder; None if it cannot be read at this moment."""
    try:
        return _read_identity(folder, _version_of(folder))
    except VaultError:
        return None


@lru_cache(maxsize=64)
def _read_identity(folder: Path, version: tuple[object, ...]) -> str:
    if is_written(folder):
        raise VaultError(f"the vault {folder} is being written, or its writer was killed")
    with Vault.open(folder / next(iter(Vault.labels(folder)), "")) as vault:
        return vault.identity


def is_written(folder: Path) -> bool:
    """Whether a writer is at work, or was killed: opening the vault would wait for it, or undo what it has left."""
    return (folder / f"{DATABASE}-journal").exists()


def runs_in(folder: Path, deepest: int = _DEEPEST) -> Iterator[Path]:
    """Find the run folders in a folder, which may be one itself; links and hidden folders are not followed.

    A party's own folder often holds the job beside its runs: where there is a job, and nothing that a run leaves, it is
    taken for a run only if no run is found inside.
    """
    try:
        has_job = (folder / "job.yaml").is_file()
        if has_job and any((folder / name).exists() for name in _LEFT_BY_A_RUN):
            yield folder
            return
    except OSError:  # not ours to read
        return
    inner = [place for place in folders_in(folder) if not place.name.startswith(".")] if deepest else []
    found = [run for place in inner for run in runs_in(place, deepest - 1)]
    yield from found or ([folder] if has_job else [])


def folders_in(place: Path) -> list[Path]:
    """Return the folders in a folder, not those that links lead to; none if it cannot be read."""
    try:
        return [Path(entry.path) for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # not ours to read, or gone by now
        return []
