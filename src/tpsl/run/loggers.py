"""Loggers by name: observers that a user chooses (`local.log`). Each follows one side of a run, and learns what that
side may know.

The label party's curves hold its test metrics, which depend on true labels: they stay in its folder, or go to a server
of its own. A feature party's hold steps and speed. A logger of curves is a `Curves`, such as those for TensorBoard and
MLflow; any other observer hears of every step and event. Users register functions of a `LoggedRun` and a text:

    LOGGERS.register("csv", CsvCurves)
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tpsl.files import make_private_folder, write_atomically, write_durably
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import Notice
from tpsl.registry import ExtensionError, Registry, UnknownName, called
from tpsl.run.job import Job, dotted
from tpsl.run.observer import Fact, Observer, Observers, ProgressFile
from tpsl.run.run_folder import RunFolder

_PATIENCE = 10.0  # seconds that the end of a run waits for what is not written yet
NO_LOGGER = "none"


@dataclass(frozen=True)
class LoggedRun:
    """What a logger or an observer is told of a run and of its own side before the first step."""

    name: str
    party: str
    folder: Path
    """The party's own folder in the run; training makes it, and refuses one that it has not made."""
    agreement: Mapping[str, str]
    """The job as names and values: both parties hold it, and nothing in it depends on labels."""


class LoggerError(ExtensionError):
    """A logger that was asked for and cannot be had; the sentence says why."""


class Curves(Observer):
    """Hears how far and how fast a side is and, at the label party, its metrics; a subclass writes these curves.

    Guarantee: of a feature party nothing but step and speed is written, whatever events its role reports. `begin`,
    `write` and `end` run in a thread of its own, may be slow and may fail: the step loop does not wait. An error is
    raised when the observer is told something next.
    """

    every = 1.0  # seconds between two points of the speed

    def __init__(self, run: LoggedRun) -> None:
        self.run = run
        self._step, self._finished = 0, False
        self._mark: tuple[float, int] | None = None
        self._error: Exception | None = None
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="logger", daemon=True)
        self._thread.start()

    def begin(self, step: int) -> None:
        """From this step on everything comes again: what an interrupted run wrote beyond it is void."""

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add one point, of this time since the epoch, to each of these curves."""

    def end(self, finished: bool) -> None:
        """Write what is left; `finished` says whether the run is."""

    def at_step(self, done: int, total: int, records: int) -> None:
        """Note the step, and every now and then the speed since the last point."""
        now = time.monotonic()
        if self._mark is None or done <= self._step:
            self._mark = (now, records)
            self._put(partial(self.begin, done))
        self._step = done
        since, before = self._mark
        if now > since and now - since >= self.every:
            self._mark = (now, records)
            self._put_point(done, {"samples_per_second": (records - before) / (now - since)})

    def event(self, name: str, **facts: Fact) -> None:
        """Note the metrics of an epoch and of the local head, at the label party alone."""
        self._finished = self._finished or name == "finished"
        if self.run.party != LABEL_PARTY or name not in ("epoch", "evaluated", "local head"):
            return
        values = {key: float(fact) for key, fact in facts.items() if isinstance(fact, int | float)}
        step = self._step
        if name == "evaluated":  # maybe in a later process, where peers must not see how long it takes
            step = int(values.pop("step"))
            values.pop("epoch")
            self._step = max(self._step, step)
        elif name == "local head":
            values = {f"local_head_{key}": value for key, value in values.items()}
        self._put_point(step, values)

    def close(self) -> None:
        """Let what is left be written; not for longer than a few seconds."""
        self._put(partial(self.end, self._finished))
        self._tasks.put(None)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            raise LoggerError("it does not keep up, and the last points of its curves are lost")
        if self._error is not None:
            raise self._error

    def _put_point(self, step: int, values: Mapping[str, float]) -> None:
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        self._put(partial(self.write, step, time.time(), finite))

    def _put(self, task: Callable[[], None]) -> None:
        if self._error is not None:
            raise self._error
        self._tasks.put(task)

    def _work(self) -> None:
        try:
            for task in iter(self._tasks.get, None):
                task()
        except Exception as error:
            self._error = error


def has_tensorboard() -> bool:
    """Whether TensorBoard is installed; nothing is imported."""
    return importlib.util.find_spec("tensorboard") is not None


class TensorBoard(Curves):
    """Writes event files into a folder, or into RUN/PARTY/tensorboard."""

    def __init__(self, run: LoggedRun, folder: str = "") -> None:
        if not has_tensorboard():
            raise LoggerError("TensorBoard is not installed: `pip install 'tpsl[tensorboard]'` gets it")
        super().__init__(run)
        self._folder = Path(folder) if folder else run.folder / "tensorboard"
        self._writer: Any = None

    def begin(self, step: int | None) -> None:
        """Make points from this step on invisible, and go on in a new file."""
        from torch.utils.tensorboard import SummaryWriter

        self.end(finished=False)
        make_private_folder(self._folder)
        self._writer = SummaryWriter(str(self._folder), purge_step=step, flush_secs=2)
        for file in self._folder.iterdir():
            file.chmod(0o600)

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add the points; they are in the file within seconds."""
        if self._writer is None:
            self.begin(None)
        for key, value in values.items():
            self._writer.add_scalar(key, value, step, walltime=when)

    def end(self, finished: bool) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


class Mlflow(Curves):
    """Writes to an MLflow server or folder; a run that is resumed goes on where it was there."""

    def __init__(self, run: LoggedRun, uri: str) -> None:
        if not uri:
            raise LoggerError("MLflow needs the address of its server or store: mlflow=URI")
        # An unknown server should be an error now, not after minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        try:
            mlflow = importlib.import_module("mlflow")
            self._entities = importlib.import_module("mlflow.entities")
        except ImportError as error:
            raise LoggerError("MLflow is not installed: `pip install 'tpsl[mlflow]'` gets it") from error
        self._run_id = ""
        try:
            _make_store(uri)
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name("tpsl")
            self._experiment = found.experiment_id if found else self._client.create_experiment("tpsl")
        except Exception as error:
            reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            raise LoggerError(_without_passwords(f"MLflow cannot be used at {uri} ({reason})")) from error
        super().__init__(run)

    def begin(self, step: int) -> None:
        """Begin the run there, or go on with it: what it has stays, and points that come again are the same."""
        noted = self.run.folder / "mlflow-run"
        if not self._run_id and noted.exists():
            before = noted.read_text(encoding="utf-8").strip()
            with suppress(Exception):  # of another server, or deleted there
                self._client.update_run(before, status="RUNNING")
                self._run_id = before
        if not self._run_id:
            name = f"{self.run.name}, {self.run.party}"
            self._run_id = self._client.create_run(self._experiment, run_name=name).info.run_id
            params = [self._entities.Param(*fact) for fact in self.run.agreement.items()]
            self._client.log_batch(self._run_id, params=params)
            write_atomically(noted, self._run_id.encode())

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add the points."""
        self.begin(step)
        metrics = [self._entities.Metric(key, value, int(when * 1000), step) for key, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, finished: bool) -> None:
        """Say how the run ended."""
        if self._run_id:
            self._client.set_terminated(self._run_id, "FINISHED" if finished else "KILLED")


def _make_store(uri: str) -> None:
    """Make a store on this machine for its owner only: MLflow itself would take the umask as it comes."""
    place = urlsplit(uri)
    if place.scheme == "file" or not (place.scheme or uri.startswith("databricks")):
        make_private_folder(Path(unquote(place.path)))
    elif place.scheme == "sqlite":
        file = Path(place.path.removeprefix("/"))
        make_private_folder(file.parent)
        if not file.exists():
            write_durably(file, b"")  # an empty file is an empty database


def _without_passwords(text: str) -> str:
    """Return a text whose addresses name no user: https://me:secret@server is https://server."""
    return re.sub(r"://[^/\s]*@", "://", text)


LOGGERS: Registry[Callable[[LoggedRun, str], Observer]] = Registry("logger")
LOGGERS.register("tensorboard", TensorBoard)
LOGGERS.register("mlflow", Mlflow)


@contextmanager
def run_logger(
    job: Job,
    run: Path,
    party: str,
    notice: Notice,
    log: Sequence[str] | None = None,
    displays: Mapping[str, Observer] | None = None,
) -> Iterator[Observer]:
    """Yield the observer that tells all others of a run; curves are complete when the block ends.

    These are the chosen loggers, the `displays`, and the run's `progress.json`, which is gone when the block ends.
    `log` has the names of loggers, each with what it takes after a `=`, as in `mlflow=URI`, or `none`. None means
    TensorBoard, if it is installed.
    """
    if log is None:
        log = ["tensorboard"] if has_tensorboard() else []
    folder = RunFolder(run).party(party)
    logged = LoggedRun(run.resolve().name, party, folder, _agreement(job, party))
    observers = [("progress file", ProgressFile(folder)), *(displays or {}).items()]
    for name, _, argument in (text.partition("=") for text in log if text != NO_LOGGER):
        if name not in LOGGERS:
            raise UnknownName(f"unknown logger {name!r}; known are {', '.join([*LOGGERS, NO_LOGGER])}")
        observers.append((name, called(f"the logger {name!r}", LOGGERS.get(name), logged, argument)))
    everybody = Observers(party, observers, notice)
    try:
        yield everybody
    finally:
        everybody.close()


def _agreement(job: Job, party: str) -> dict[str, str]:
    """Return the job as names and values."""
    fields = {name: str(value)[:500] for name, value in dotted(job.agreed()).items()}
    return dict(list({"party": party, "job": job.digest(), **fields}.items())[:100])
