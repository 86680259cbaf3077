"""Loggers and observers by name: they follow one side of a run, and learn what that side may know.

The label party's curves hold its test metrics, which depend on true labels: they stay in its folder, or go to a server
of its own. A feature party's hold steps and speed. A logger gets curves (`tpsl.training.curves`); an observer hears of
every step and event (`tpsl.training.observer`). Users register theirs as functions of a `LoggedRun` and a text:

    LOGGERS.register("csv", lambda run, path: CsvCurves(Path(path or run.folder / "curves.csv")))
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tpsl.net.peers import LABEL_PARTY
from tpsl.progress import Notice
from tpsl.registry import Registry, UnknownName, called
from tpsl.training.curves import LoggedRun, Mlflow, Sink, TensorBoard, has_tensorboard
from tpsl.training.dotted import dotted
from tpsl.training.job import Job
from tpsl.training.observer import Fact, Observer, Observers, reason_of
from tpsl.training.progress_file import ProgressFile
from tpsl.training.run_folder import RunFolder

_EVERY = 1.0  # seconds between two points of the speed
_PATIENCE = 10.0  # seconds that the end of a run waits for what is not written yet

LOGGERS: Registry[Callable[[LoggedRun, str], Sink]] = Registry("logger")
LOGGERS.register("tensorboard", TensorBoard)
LOGGERS.register("mlflow", Mlflow)
OBSERVERS: Registry[Callable[[LoggedRun, str], Observer]] = Registry("observer")
NO_LOGGER = "none"


class Curves(Observer):
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
            self._write(done, {"samples_per_second": (records - before) / (now - since)})

    def event(self, name: str, **facts: Fact) -> None:
        """Note the metrics of an epoch and of the local head, at the label party alone."""
        self._finished = self._finished or name == "finished"
        if not self._has_labels or name not in ("epoch", "evaluated", "local head"):
            return
        values = {key: float(fact) for key, fact in facts.items() if isinstance(fact, int | float)}
        step = self._step
        if name == "evaluated":  # maybe in a later process, where peers must not see how long it takes
            step = int(values.pop("step"))
            values.pop("epoch")
            self._step = max(self._step, step)
        elif name == "local head":
            values = {f"local_head_{key}": value for key, value in values.items()}
        self._write(step, values)

    def close(self) -> None:
        """Let the sinks write what is left; not for longer than a few seconds."""
        finished = self._finished
        self._waiting.put(lambda sink: sink.close(finished))
        self._waiting.put(None)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._notice("the loggers do not keep up: the last points of the curves are lost")

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        known, when = {key: value for key, value in values.items() if math.isfinite(value)}, time.time()
        self._waiting.put(lambda sink: sink.write(step, when, known))

    def _work(self, sinks: list[Sink]) -> None:
        for task in iter(self._waiting.get, None):
            for sink in list(sinks):
                try:
                    task(sink)
                except Exception as error:
                    sinks.remove(sink)
                    self._notice(f"{sink.name} is given up: {reason_of(error)}")


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

    These are the chosen loggers and observers, the `displays`, and the run's `progress.json`, which is gone when the
    block ends. `log` has the names of loggers and observers, each with what it takes after a `=`, as in `mlflow=URI`,
    or `none`. None means TensorBoard, if it is installed.
    """
    if log is None:
        log = ["tensorboard"] if has_tensorboard() else []
    logged = LoggedRun(run.resolve().name, party, RunFolder(run).party(party), _agreement(job, party))
    sinks: list[Sink] = []
    observers = dict(displays or {})
    for name, _, argument in (text.partition("=") for text in log if text != NO_LOGGER):
        if name in LOGGERS:
            sinks.append(called(f"the logger {name!r}", LOGGERS.get(name), logged, argument))
        elif name in OBSERVERS:
            observers[name] = called(f"the observer {name!r}", OBSERVERS.get(name), logged, argument)
        else:
            raise UnknownName(f"unknown logger {name!r}; known are {', '.join([*LOGGERS, *OBSERVERS, NO_LOGGER])}")
    curves, progress = Curves(party, sinks, notice), ProgressFile(logged.folder)
    try:
        yield Observers(party, {"curves": curves, "progress file": progress, **observers}, notice)
    finally:
        progress.close()
        curves.close()


def _agreement(job: Job, party: str) -> dict[str, str]:
    """Return the job as names and values."""
    fields = {name: str(value)[:500] for name, value in dotted(job.agreed()).items()}
    return dict(list({"party": party, "job": job.digest(), **fields}.items())[:100])
