"""A folder of runs as it is at this moment: runs that have not changed since the last look are not read again."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tpsl.report.feature_reading import read_feature_run
from tpsl.report.promises import promise_of
from tpsl.report.reading import classes_of, job_view, read_run
from tpsl.report.run_view import RunView
from tpsl.training.run_folder import NOT_PRIVATE, RunError, RunFolder
from tpsl.transport.peers import LABEL_PARTY
from tpsl.vault.storage import DATABASE

Progress = Callable[[int, int, str], None]
Traces = tuple[tuple[str, int, int, int], ...]

_DEEPEST = 4  # folders below the watched one: `runs/paper/flights/seed-1` is found
_LEFT_BY_A_RUN = (".lock", "result.json")
_OFTEN = 0.3  # seconds in which many readers share one look


@dataclass(frozen=True)
class Look:
    """What was there at one moment; `version` differs whenever anything else does."""

    views: tuple[RunView, ...]
    problems: tuple[str, ...]
    """One sentence for each run that cannot be read."""
    version: str


class WatchedFolder:
    """All runs in a folder, and in its folders, as one party may see them. Nothing is ever written."""

    def __init__(self, folder: Path, party: str = LABEL_PARTY) -> None:
        if not folder.is_dir():
            raise RunError(f"{folder}: there is no such folder")
        self.folder, self.party = folder, party
        self._known: dict[Path, tuple[Traces, RunView | str]] = {}
        self._lock = threading.Lock()
        self._last: tuple[float, Look] | None = None

    def look(self, progress: Progress = lambda done, total, note: None) -> Look:
        """Return the runs, sorted by path; only those that have changed are read. From any thread."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] > _OFTEN:
                look = self._look(progress)
                self._last = time.monotonic(), look
            return self._last[1]

    def _look(self, progress: Progress) -> Look:
        known: dict[Path, tuple[Traces, RunView | str]] = {}
        paths = sorted(runs_in(self.folder))
        for done, path in enumerate(paths):
            progress(done, len(paths), path.name)
            # Before the reading: what changes meanwhile is seen at the next look.
            traces = _traces(path, self.party)
            before = self._known.get(path)
            known[path] = before if before and before[0] == traces else (traces, self._read(path))
        self._known = known
        found = [content for _, content in known.values()]
        state = repr([(path, traces) for path, (traces, _) in known.items()])
        return Look(
            tuple(content for content in found if not isinstance(content, str)),
            tuple(content for content in found if isinstance(content, str)),
            hashlib.sha256(state.encode()).hexdigest()[:32],
        )

    def _read(self, path: Path) -> RunView | str:
        name = path.relative_to(self.folder).as_posix() if path != self.folder else path.resolve().name
        try:
            if self.party != LABEL_PARTY:
                return read_feature_run(path, self.party, name)
            if (RunFolder(path).label / "vault" / f"{DATABASE}-journal").exists():
                return _without_vault(path, name)
            return read_run(path, name)
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
        inner = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # not ours to read, or gone meanwhile
        return
    names = [name for name in inner if not name.startswith(".")] if deepest else []
    found = [run for name in names for run in runs_in(folder / name, deepest - 1)]
    yield from found or ([folder] if has_job else [])


def _without_vault(path: Path, name: str) -> RunView:
    """Return what the job says of a run whose vault is being written.

    Opening it would wait for the writer, or undo what a killed writer has left: both are more than reading.
    """
    job = RunFolder(path).job()
    classes = classes_of(job)
    view = job_view(path, job, LABEL_PARTY, promise_of(job, classes), classes, name)
    view["ledger_note"] = "The vault is being written, or its writer was killed."
    return view


def _traces(run: Path, party: str) -> Traces:
    """Return what changes when any file does that a view is made of."""
    own = run / party
    places = [run, own, own / "checkpoints"]
    if party == LABEL_PARTY:
        places += [own / "vault", own / NOT_PRIVATE]
    traces = []
    for place in places:
        try:
            for entry in os.scandir(place):
                state = entry.stat()
                traces.append((entry.path, state.st_mtime_ns, state.st_size, state.st_ino))
        except OSError:
            traces.append((str(place), 0, 0, 0))
    return tuple(sorted(traces))
