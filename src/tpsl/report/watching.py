"""A folder of runs as it is at this moment: runs that have not changed since the last snapshot are not read again."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpsl.files import draft_of
from tpsl.progress import Progress, no_progress
from tpsl.report.label_view import job_view, last_change
from tpsl.report.ledgers import known_vaults, with_sums
from tpsl.report.page import told_apart
from tpsl.report.promises import promise_of
from tpsl.report.reading import read_view
from tpsl.report.run_view import RunView
from tpsl.training.progress_file import PROGRESS, RunProgress
from tpsl.training.run_folder import NOT_PRIVATE, RunError, RunFolder
from tpsl.transport.peers import LABEL_PARTY
from tpsl.vault import VaultSum, sums_over
from tpsl.vault.storage import DATABASE

Traces = tuple[tuple[str, int, int, int], ...]

_DEEPEST = 4  # folders below the watched one: `runs/paper/flights/seed-1` is found
_LEFT_BY_A_RUN = (".lock", "result.json")
_HOW_FAR = (PROGRESS, draft_of(Path(PROGRESS)).name)
_KEPT = 0.3  # seconds in which many readers share one snapshot


@dataclass(frozen=True)
class WatchedRun:
    """A run that can be read. No other run of a snapshot has its name."""

    view: RunView
    version: str
    """Differs whenever the view does."""
    vault: Path | None
    """Where the run has noted its vault; None for a feature party."""
    progress: RunProgress | None
    written: str | None
    """When the run, or its progress, was last written, in UTC."""


@dataclass(frozen=True)
class Snapshot:
    """What was there at one moment; `version` differs whenever anything else does."""

    runs: tuple[WatchedRun, ...]
    problems: tuple[str, ...]
    """One sentence for each run that cannot be read."""
    sums: Mapping[Path, VaultSum]
    """What the records of each known vault have spent over all of them."""
    version: str

    @property
    def views(self) -> list[RunView]:
        """The runs as reports show them."""
        return [run.view for run in self.runs]


@dataclass(frozen=True)
class _Known:
    """What the last snapshot saw of one run."""

    own: Traces
    """Of the run's folder alone."""
    vault: Path | None
    traces: Traces
    """Of the run's folder and its vault."""
    view: RunView | str

    @property
    def version(self) -> str:
        return _digest(repr(self.traces))


class WatchedFolder:
    """All runs in a folder, and in its folders, as one party may see them. Nothing is ever written."""

    def __init__(self, folder: Path, party: str = LABEL_PARTY) -> None:
        if not folder.is_dir():
            raise RunError(f"{folder}: there is no such folder")
        self.folder, self.party = folder, party
        self._known: dict[Path, _Known] = {}
        self._summed: tuple[object, Mapping[Path, VaultSum], list[str]] = ((), {}, [])
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
        for done, path in enumerate(paths):
            progress(done, len(paths), path.name)
            known[path] = self._known_of(path)
        self._known = known
        read = {path: found.view for path, found in known.items() if not isinstance(found.view, str)}
        vaults = [known[path].vault if self.party == LABEL_PARTY else None for path in read]
        sums, problems = self._sums(vaults) if self.party == LABEL_PARTY else ({}, [])
        views = told_apart(with_sums(list(read.values()), vaults, sums))
        runs = [self._watched(path, known[path], view) for path, view in zip(read, views, strict=True)]
        problems = [*(found.view for found in known.values() if isinstance(found.view, str)), *problems]
        state = [(path, found.traces) for path, found in known.items()], [run.progress for run in runs]
        return Snapshot(tuple(runs), tuple(problems), sums, _digest(repr(state) + repr(self._summed[0])))

    def _watched(self, path: Path, known: _Known, view: RunView) -> WatchedRun:
        """Return a run with how far it is; that is read each time, and the run is not read again for it."""
        folder, vault = path / view["party"], known.vault if self.party == LABEL_PARTY else None
        progress = RunProgress.read(folder)
        written = last_change([folder / PROGRESS]) if progress else None
        return WatchedRun(view, known.version, vault, progress, written or view["updated"])

    def _known_of(self, path: Path) -> _Known:
        """Return what is known of a run; it is read again if a file has changed that its view is made of."""
        # Before reading: what changes while the run is read is seen next time.
        own, before = _traces(path, self.party), self._known.get(path)
        vault = before.vault if before and before.own == own else self._vault_of(path)
        traces = own + (_traces_in(vault) if vault else ())
        return before if before and before.traces == traces else _Known(own, vault, traces, self._read(path, vault))

    def _vault_of(self, path: Path) -> Path | None:
        """Return where the label party has noted its vault; a note that cannot be read is reported with the run."""
        try:
            return RunFolder(path).vault() if RunFolder(path).label.is_dir() else None
        except ValueError:
            return None

    def _sums(self, own: list[Path | None]) -> tuple[Mapping[Path, VaultSum], list[str]]:
        """Return what records have spent over all known vaults, computed again when one of these has changed."""
        vaults = known_vaults(own)
        traces = tuple((str(vault), _traces_in(vault)) for vault in vaults)
        if traces != self._summed[0]:
            written = [vault for vault in vaults if _is_written(vault)]
            problems = [f"{vault}: is being written, or its writer was killed; it is not counted" for vault in written]
            sums: Mapping[Path, VaultSum] = {}
            try:
                sums = sums_over([vault for vault in vaults if vault not in written])
            except (ValueError, OSError) as error:
                problems.append(str(error))
            self._summed = traces, sums, problems
        return self._summed[1], self._summed[2]

    def _read(self, path: Path, vault: Path | None) -> RunView | str:
        name = path.relative_to(self.folder).as_posix() if path != self.folder else path.resolve().name
        try:
            if vault is not None and _is_written(vault) and not (path / self.party).is_dir():
                return f"{path}: its vault is being written, or its writer was killed"
            if vault is not None and _is_written(vault) and self.party == LABEL_PARTY:
                return _without_vault(path, name)
            return read_view(path, self.party, name)
        except (ValueError, OSError) as error:
            return str(error)
        except Exception as error:  # A run that is damaged in a new way must not cost the others.
            return f"{path}: cannot be read ({error!r})"


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
    inner = [place for place in _folders_in(folder) if not place.name.startswith(".")] if deepest else []
    found = [run for place in inner for run in runs_in(place, deepest - 1)]
    yield from found or ([folder] if has_job else [])


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


def _is_written(vault: Path) -> bool:
    return (vault / f"{DATABASE}-journal").exists()


def _traces(run: Path, party: str) -> Traces:
    """Return what changes when any file in the run's folder does that a view is made of.

    Of a party without a folder (it may have another name, or another party hands its view over) all folders count.
    """
    own = [run / party] if (run / party).is_dir() else _folders_in(run)
    inner = [folder / name for folder in own for name in ("checkpoints", NOT_PRIVATE)]
    return _traces_in(run, *own, *inner)


def _folders_in(place: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # not ours to read, or gone by now
        return []


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
