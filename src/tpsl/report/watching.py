"""A folder of runs as it is at this moment: runs that have not changed since the last snapshot are not read again."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tpsl.files import draft_of
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import Progress, no_progress
from tpsl.report.ledgers import Memory, folders_in, is_written, note_of, runs_in, vault_label
from tpsl.report.page import told_apart
from tpsl.report.promises import promise_of
from tpsl.report.run_reading import job_view, last_change, read_view
from tpsl.report.run_view import RunView
from tpsl.run.observer import PROGRESS, RunProgress
from tpsl.run.run_folder import NOT_PRIVATE, RunError, RunFolder
from tpsl.vault.place import address_of

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


class WatchedFolder:
    """All runs in a folder, and in its folders, as one party may see them. Nothing is ever written."""

    def __init__(self, folder: Path, party: str = LABEL_PARTY) -> None:
        if not folder.is_dir():
            raise RunError(f"{folder}: there is no such folder")
        self.folder, self.party = folder, party
        self._read: dict[Path, tuple[str, RunView | str]] = {}
        self._lock = threading.Lock()
        self._last: tuple[float, Snapshot] | None = None

    def snapshot(self, progress: Progress = no_progress) -> Snapshot:
        """Return the runs, sorted by path; only those that have changed are read. From any thread."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] > _KEPT:
                found = self._look(progress)
                self._last = time.monotonic(), found
            return self._last[1]

    def _look(self, progress: Progress) -> Snapshot:
        paths = sorted(runs_in(self.folder))
        # A feature party that has its own folder is shown nothing of what the label party has noted.
        notes = {path: None if (path / self.party).is_dir() and self._is_feature else note_of(path) for path in paths}
        memory, read = Memory(notes), dict[Path, tuple[str, RunView | str]]()
        vaults = {path: _vault_of(path, memory) for path in paths}
        for done, path in enumerate(paths):
            progress(done, len(paths), path.name)
            # Before reading: what changes while a run is read is seen next time.
            version, before = _version(path, self.party, vaults[path], memory.version), self._read.get(path)
            read[path] = (
                before if before and before[0] == version else (version, self._view(path, vaults[path], memory))
            )
        self._read = read
        found = {path: view for path, (_, view) in read.items() if not isinstance(view, str)}
        runs = [
            self._watched(path, view, vaults[path])
            for path, view in zip(found, told_apart(list(found.values())), strict=True)
        ]
        problems = tuple(view for _, view in read.values() if isinstance(view, str))
        state = [(path, version) for path, (version, _) in read.items()], [run.progress for run in runs]
        return Snapshot(tuple(runs), problems, _digest(repr(state)))

    @property
    def _is_feature(self) -> bool:
        return self.party != LABEL_PARTY

    def _watched(self, path: Path, view: RunView, vault: Path | None) -> WatchedRun:
        """Return a run with how far it is; that is read each time, and the run is not read again for it."""
        progress = RunProgress.read(path / view.party)
        written = last_change([path / view.party / PROGRESS]) if progress else None
        name = None if vault is None or self._is_feature else vault_label(vault)
        return WatchedRun(view, self._read[path][0], name, progress, written or view.updated)

    def _view(self, path: Path, vault: Path | None, memory: Memory) -> RunView | str:
        name = path.relative_to(self.folder).as_posix() if path != self.folder else path.resolve().name
        try:
            if vault is not None and not self._is_feature and is_written(address_of(vault).folder):
                # Opening it would wait for the writer, or undo what a killed writer has left: more than reading.
                job = RunFolder(path).job()
                view = job_view(path, job, LABEL_PARTY, promise_of(job, job.classes), job.classes, name)
                return replace(view, ledger_note="The vault is being written, or its writer was killed.")
            return read_view(path, self.party, name, memory=memory)
        except (ValueError, OSError) as error:
            return str(error)
        except Exception as error:  # A run that is damaged in a new way must not cost the others.
            return f"{path}: cannot be read ({error!r})"


def _vault_of(path: Path, memory: Memory) -> Path | None:
    """Return where the label party's vault is, or was; a note that cannot be read is reported with the run."""
    run = RunFolder(path)
    with suppress(ValueError):
        return (memory.place(run) or run.vault()) if run.label.is_dir() else None
    return None


def _version(run: Path, party: str, vault: Path | None, memory: str) -> str:
    """Return what differs whenever a file does that the view is made of, but for how far the run is.

    Of a party without a folder (it may have another name, or another party hands its view over) all folders count.
    """
    own = [run / party] if (run / party).is_dir() else folders_in(run)
    places = [run, *own, *(folder / name for folder in own for name in ("checkpoints", NOT_PRIVATE))]
    if vault is not None:
        places.append(address_of(vault).folder)
    listed = set(map(str, places))
    # A folder changes with each file in it: of those that are listed, the files count.
    traces = sorted(trace for place in places for trace in _traces(place) if trace[0] not in listed)
    return _digest(repr(traces) + memory)


def _traces(place: Path) -> Iterator[tuple[str, int, int, int]]:
    with suppress(OSError):
        for entry in os.scandir(place):
            if entry.name in _HOW_FAR:
                continue
            try:
                state = entry.stat()
                yield entry.path, state.st_mtime_ns, state.st_size, state.st_ino
            except OSError:  # gone by now, or a link to nothing: the others still count
                yield entry.path, 0, 0, 0


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()[:32]
