"""Training curves for TensorBoard and MLflow: observers of one side, which write what that side may know.

The label party's curves hold its test metrics, which depend on true labels: they stay in its folder, or go to an MLflow
server of its own. A feature party's hold steps and speed. Neither library is needed by anything else here.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from tpsl.files import make_private_folder, write_atomically, write_durably
from tpsl.progress import Notice
from tpsl.training.job import Job
from tpsl.training.observer import Fact, NullObserver
from tpsl.training.run_folder import RunFolder
from tpsl.transport.peers import LABEL_PARTY

_EVERY = 1.0  # seconds between two points of the speed
_PATIENCE = 10.0  # seconds that the end of a run waits for what is not written yet


class LoggerError(ValueError):
    """A logger that was asked for and cannot be had; the sentence says why."""


class Sink(Protocol):
    """Where curves go. Called from one thread; may be slow, may fail."""

    name: str

    def begin(self, step: int) -> None:
        """From this step on everything comes anew: what an interrupted run wrote beyond it is void."""

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add one point, of this time since the epoch, to each of these curves."""

    def close(self, finished: bool) -> None:
        """Write what is left."""


class RunLogger(NullObserver):
    """Tells sinks how far and how fast a side is and, at the label party, its metrics.

    Guarantee: of a feature party nothing but step and speed is written, whatever events its role reports. The step loop
    waits for no sink, and a sink that fails is given up with a notice; training goes on.
    """

    def __init__(self, party: str, sinks: Sequence[Sink], notice: Notice, every: float = _EVERY) -> None:
        self._has_labels, self._notice, self._every = party == LABEL_PARTY, notice, every
        self._step = 0
        self._mark: tuple[float, int] | None = None
        self._finished = False
        self._waiting: queue.SimpleQueue[Callable[[Sink], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=[list(sinks)], name="loggers", daemon=True)
        self._thread.start()

    def at_step(self, done: int, total: int, records: int) -> None:
        """Note the step, and every now and then the speed since the last point."""
        now = time.monotonic()
        if self._mark is None or done <= self._step:
            self._mark = (now, records)
            self._waiting.put(lambda sink: sink.begin(done))
        self._step = done
        since, before = self._mark
        if now > since and now - since >= self._every:
            self._mark = (now, records)
            self._write({"samples_per_second": (records - before) / (now - since)})

    def event(self, name: str, **facts: Fact) -> None:
        """Note the metrics of an epoch and of the local head, at the label party alone."""
        self._finished = self._finished or name == "finished"
        if not self._has_labels or name not in ("epoch", "evaluated", "local head"):
            return
        values = {key: float(fact) for key, fact in facts.items() if isinstance(fact, int | float)}
        if name == "evaluated":  # maybe long after its epoch, where peers must not see how long it takes
            step = int(values.pop("step"))
            values.pop("epoch")
            self._write(values, step)
        else:
            self._write({f"local_head_{key}" if name == "local head" else key: value for key, value in values.items()})

    def close(self) -> None:
        """Let the sinks write what is left; not for longer than a few seconds."""
        finished = self._finished
        self._waiting.put(lambda sink: sink.close(finished))
        self._waiting.put(None)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._notice("the loggers do not keep up: the last points of the curves are lost")

    def _write(self, values: Mapping[str, float], step: int | None = None) -> None:
        known = {key: value for key, value in values.items() if math.isfinite(value)}
        at, when = self._step if step is None else step, time.time()
        self._waiting.put(lambda sink: sink.write(at, when, known))

    def _work(self, sinks: list[Sink]) -> None:
        for task in iter(self._waiting.get, None):
            for sink in list(sinks):
                try:
                    task(sink)
                except Exception as error:
                    sinks.remove(sink)
                    self._notice(f"{sink.name} is given up: {' '.join(str(error).split()) or type(error).__name__}")


class TensorBoard:
    """Writes event files into a folder."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        if not has_tensorboard():
            raise LoggerError("TensorBoard is not installed: `pip install 'tpsl[tensorboard]'` gets it")
        self._folder = folder
        self._writer: Any = None

    def begin(self, step: int) -> None:
        """Make points from this step on invisible, and go on in a new file."""
        self._open(step)

    def _open(self, purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is not None:
            self._writer.close()
        make_private_folder(self._folder)
        self._writer = SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=2)
        for file in self._folder.iterdir():
            file.chmod(0o600)

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add the points; they are in the file within seconds."""
        if self._writer is None:
            self._open(None)
        for key, value in values.items():
            self._writer.add_scalar(key, value, step, walltime=when)

    def close(self, finished: bool) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


class Mlflow:
    """Writes to an MLflow server or folder; a run that is resumed goes on where it was there."""

    name = "MLflow"

    def __init__(self, uri: str, name: str, facts: Mapping[str, str], remembered: Path) -> None:
        # An unknown server should be an error now, not after minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        try:
            mlflow = importlib.import_module("mlflow")
            self._entities = importlib.import_module("mlflow.entities")
        except ImportError as error:
            raise LoggerError("MLflow is not installed: `pip install 'tpsl[mlflow]'` gets it") from error
        self._name, self._facts, self._remembered = name, facts, remembered
        self._run: str | None = None
        try:
            _make_store(uri)
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name("tpsl")
            self._experiment = found.experiment_id if found else self._client.create_experiment("tpsl")
        except Exception as error:
            raise LoggerError(f"MLflow cannot be used at {_without_password(uri)} ({_first_line(error)})") from error

    def begin(self, step: int) -> None:
        """Begin the run there, or go on with it: what it has stays, and points that come again are the same."""
        if self._run is None:
            self._run = self._resumed() or self._created()

    def _resumed(self) -> str | None:
        if not self._remembered.exists():
            return None
        run: str = self._remembered.read_text(encoding="utf-8").strip()
        try:
            self._client.update_run(run, status="RUNNING")
        except Exception:  # of another server, or deleted there
            return None
        return run

    def _created(self) -> str:
        run: str = self._client.create_run(self._experiment, run_name=self._name).info.run_id
        self._client.log_batch(run, params=[self._entities.Param(*fact) for fact in self._facts.items()])
        write_atomically(self._remembered, run.encode())
        return run

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add the points."""
        self.begin(step)
        metrics = [self._entities.Metric(key, value, int(when * 1000), step) for key, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, finished: bool) -> None:
        """Say how the run ended."""
        if self._run is not None:
            self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


def has_tensorboard() -> bool:
    """Whether TensorBoard is installed; nothing is imported."""
    return importlib.util.find_spec("tensorboard") is not None


@contextmanager
def run_logger(
    job: Job, run: Path, party: str, notice: Notice, *, tensorboard: bool | None = None, mlflow: str | None = None
) -> Iterator[RunLogger]:
    """Yield the observer that writes this party's curves of a run; they are complete when the block ends.

    `tensorboard`: into RUN/PARTY/tensorboard; None means if it is installed. `mlflow`: the address of a server.
    """
    sinks: list[Sink] = []
    own = RunFolder(run).party(party)
    if tensorboard or (tensorboard is None and has_tensorboard()):
        sinks.append(TensorBoard(own / "tensorboard"))
    if mlflow:
        sinks.append(Mlflow(mlflow, f"{run.resolve().name}, {party}", _facts(job, party), own / "mlflow-run"))
    logger = RunLogger(party, sinks, notice)
    try:
        yield logger
    finally:
        logger.close()


def _facts(job: Job, party: str) -> dict[str, str]:
    """Return the agreement as names and values: both parties hold it, and nothing in it depends on labels."""
    facts = {"party": party, "job": job.digest()}

    def gather(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                gather(f"{name}.{key}" if name else str(key), inner)
        elif value is not None:
            facts[name] = str(value)[:500]

    gather("", job.agreed())
    return dict(list(facts.items())[:100])


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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _without_password(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else uri
