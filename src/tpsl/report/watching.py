"""A folder of runs as it is at this moment: runs that have not changed since the last snapshot are not read again."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tpsl.files import draft_of
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import Progress, no_progress
from tpsl.report.known_vaults import Memory, folders_in, is_written, note_of, runs_in
from tpsl.report.ledgers import vault_label
from tpsl.report.page import told_apart
from tpsl.report.promises import promise_of
from tpsl.report.run_reading import job_view, last_change, read_view
from tpsl.report.run_view import RunView
from tpsl.run.observer import PROGRESS, RunProgress
from tpsl.run.result import LedgerNote
from tpsl.run.run_folder import NOT_PRIVATE, RunError, RunFolder
from tpsl.vault.place import address_of

Traces = tuple[tuple[str, int, int, int], ...]

_HOW_FAR = (PROGRESS, draft_of(Path(PROGRESS)).name)
_KEPT = 0.3  # seconds in which many readers share one snapshot


@dataclass(frozen=True)
class WatchedRun:
    """A run that can be read. No other run of a snapshot has its name."""

    view: RunView
    version: str
    """Differs whenever the view does."""
    vault: str | None
    """The name of the run's vault; None for a feature party."""
    progress: RunProgress | None
    written: str | None
    """When the run, or its progress, was last written, in UTC."""


@dataclass(frozen=True)
class Snapshot:
    """What was there at one moment; `version` differs whenever anything else does."""

    runs: tuple[WatchedRun, ...]
    problems: tuple[str, ...]
    """One sentence for each run that cannot be read."""
    version: str

    @property
    def views(self) -> list[RunView]:
        """The runs as reports show them."""
        return [run.view for run in self.runs]


@dataclass(frozen=True)
class _Known:
    """What the last snapshot saw of one run."""

    vault: Path | None
    traces: Traces
    """Of the run's folder and its vault."""
    memory: str
    """The version of what all runs remember of vaults."""
    view: RunView | str

    @property
    def version(self) -> str:
        return _digest(repr(self.traces) + self.memory)


class WatchedFolder:
    """All runs in a folder, and in its folders, as one party may see them. Nothing is ever written."""

    def __init__(self, folder: Path, party: str = LABEL_PARTY) -> None:
        if not folder.is_dir():
            raise RunError(f"{folder}: there is no such folder")
        self.folder, self.party = folder, party
        self._known: dict[Path, _Known] = {}
        self._notes: dict[Path, tuple[Traces, LedgerNote | None]] = {}
        self._lock = threading.Lock()
        self._last: tuple[float, Snapshot] | None = None

    def snapshot(self, progress: Progress = no_progress) -> Snapshot:
        """Return the runs, sorted by path; only those that have changed are read. From any thread."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] > _KEPT:
                found = self._read_all(progress)
                self._last = time.monotonic(), found
            return self._last[1]

    def _read_all(self, progress: Progress) -> Snapshot:
        known: dict[Path, _Known] = {}
        paths = sorted(runs_in(self.folder))
        # Before reading: what changes while a run is read is seen next time.
        traces = {path: _traces(path, self.party) for path in paths}
        self._notes = {path: self._note_of(path, traces[path]) for path in paths}
        memory = Memory({path: note for path, (_, note) in self._notes.items()})
        for done, path in enumerate(paths):
            progress(done, len(paths), path.name)
            known[path] = self._known_of(path, traces[path], memory)
        self._known = known
        read = {path: found.view for path, found in known.items() if not isinstance(found.view, str)}
        views = told_apart(list(read.values()))
        runs = [self._watched(path, known[path], view) for path, view in zip(read, views, strict=True)]
        problems = [found.view for found in known.values() if isinstance(found.view, str)]
        state = [(path, found.version) for path, found in known.items()], [run.progress for run in runs]
        return Snapshot(tuple(runs), tuple(problems), _digest(repr(state)))

    def _watched(self, path: Path, known: _Known, view: RunView) -> WatchedRun:
        """Return a run with how far it is; that is read each time, and the run is not read again for it."""
        folder, vault = path / view["party"], known.vault if self.party == LABEL_PARTY else None
        progress = RunProgress.read(folder)
        written = last_change([folder / PROGRESS]) if progress else None
        name = None if vault is None else vault_label(vault)
        return WatchedRun(view, known.version, name, progress, written or view["updated"])

    def _note_of(self, path: Path, own: Traces) -> tuple[Traces, LedgerNote | None]:
        """Return what a run has noted of its vault, read again if a file of the run has changed.

        A feature party that has its own folder is shown nothing of it.
        """
        before = self._notes.get(path)
        if before and before[0] == own:
            return before
        return own, note_of(path) if self.party == LABEL_PARTY or not (path / self.party).is_dir() else None

    def _known_of(self, path: Path, own: Traces, memory: Memory) -> _Known:
        """Return what is known of a run; it is read again if a file has changed that its view is made of."""
        before, vault = self._known.get(path), self._vault_of(path, memory)
        traces = own + (_traces_in(address_of(vault).folder) if vault else ())
        if before and (before.traces, before.memory) == (traces, memory.version):
            return before
        return _Known(vault, traces, memory.version, self._read(path, vault, memory))

    def _vault_of(self, path: Path, memory: Memory) -> Path | None:
        """Return where the label party's vault is, or was; a note that cannot be read is reported with the run."""
        run = RunFolder(path)
        try:
            return (memory.place(run) or run.vault()) if run.label.is_dir() else None
        except ValueError:
            return None

    def _read(self, path: Path, vault: Path | None, memory: Memory) -> RunView | str:
        name = path.relative_to(self.folder).as_posix() if path != self.folder else path.resolve().name
        try:
            if vault is not None and is_written(address_of(vault).folder):
                if not (path / self.party).is_dir():
                    return f"{path}: its vault is being written, or its writer was killed"
                if self.party == LABEL_PARTY:
                    return _without_vault(path, name)
            return read_view(path, self.party, name, memory=memory)
        except (ValueError, OSError) as error:
            return str(error)
        except Exception as error:  # A run that is damaged in a new way must not cost the others.
            return f"{path}: cannot be read ({error!r})"


def _without_vault(path: Path, name: str) -> RunView:
    """Return what the job says of a run whose vault is being written.

    Opening it would wait for the writer, or undo what a killed writer has left: both are more than reading.
    """
    job = RunFolder(path).job()
    classes = job.classes
    view = job_view(path, job, LABEL_PARTY, promise_of(job, classes), classes, name)
    view["ledger_note"] = "The vault is being written, or its writer was killed."
    return view


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()[:32]


def _traces(run: Path, party: str) -> Traces:
    """Return what changes when any file in the run's folder does that a view is made of.

    Of a party without a folder (it may have another name, or another party hands its view over) all folders count.
    """
    own = [run / party] if (run / party).is_dir() else folders_in(run)
    inner = [folder / name for folder in own for name in ("checkpoints", NOT_PRIVATE)]
    return _traces_in(run, *own, *inner)


def _traces_in(*places: Path) -> Traces:
    """Return what changes when any file in these folders does, but for how far a run is."""
    traces, listed = list[tuple[str, int, int, int]](), set(map(str, places))
    for place in places:
        try:
            entries = list(os.scandir(place))
        except OSError:
            entries = []
        # A folder changes with each file in it: of those that are listed, the files count.
        traces += [_trace(entry) for entry in entries if entry.path not in listed and entry.name not in _HOW_FAR]
    return tuple(sorted(traces))


def _trace(entry: os.DirEntry[str]) -> tuple[str, int, int, int]:
    try:
        state = entry.stat()
    except OSError:  # gone by now, or a link to nothing: the others still count
        return entry.path, 0, 0, 0
    return entry.path, state.st_mtime_ns, state.st_size, state.st_ino
