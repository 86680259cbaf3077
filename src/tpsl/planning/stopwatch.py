"""Notes when a party's run reaches each of its steps and events: `tpsl --use tpsl.planning.stopwatch … --log …`.

An observer like those of users (`tpsl.training.loggers`), so what is timed is the very command that users give.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

from tpsl.training.loggers import OBSERVERS
from tpsl.training.observer import Fact, NullObserver
from tpsl.training.sink import LoggedRun

NAME = "stopwatch"
STARTED, STEP = "started", "step"


class Stamp(NamedTuple):
    """A moment of a run."""

    event: str
    """The name of an event, or `STARTED` when the program is loaded, or `STEP`."""
    step: int
    """How many steps were done then."""
    seconds: float
    """On a clock that all processes of this machine share."""
    cpu_seconds: float
    """What the process has computed so far."""


class Stopwatch(NullObserver):
    """Writes a stamp for each step and each event, one a line; an event and all before it are in the file at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._step = 0
        self.event(STARTED)

    def at_step(self, done: int, total: int, records: int) -> None:
        """Note that a step is done."""
        self._step = done
        self._write(STEP)

    def event(self, name: str, **facts: Fact) -> None:
        """Note that something has happened."""
        self._write(name)
        self._file.flush()

    def _write(self, event: str) -> None:
        stamp = Stamp(event, self._step, time.monotonic(), time.process_time())
        self._file.write(json.dumps(stamp) + "\n")


def stamps_in(path: Path) -> list[Stamp]:
    """Return what a stopwatch has written so far."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [Stamp(*json.loads(line)) for line in lines if line.endswith("\n")]


def _stopwatch(run: LoggedRun, path: str) -> Stopwatch:
    return Stopwatch(Path(path))


OBSERVERS.register(NAME, _stopwatch)
