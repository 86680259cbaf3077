"""Observers follow one side of a run: the display, curves, metrics, the progress file, and those of users.

Nothing of it crosses the border. An observer of a feature party hears of no fact that could depend on labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, TypeAdapter, ValidationError

from tpsl.files import draft_of, open_private, read_plain
from tpsl.net.messages import LABEL_PARTY, Traffic
from tpsl.progress import Notice, Pace, Progress, no_notice, no_progress

Fact = str | int | float
Finite = Annotated[float | None, AfterValidator(lambda value: value if value is None or math.isfinite(value) else None)]

PROGRESS = "progress.json"
_WINDOW = 60.0  # seconds over which the speed is averaged
_MOST_BYTES = 1 << 12  # of a progress file

FEATURE_FACTS = frozenset({"address", "epoch", "peer", "reason", "step", "text"})
"""All that an event of the feature side may carry: no name here stands for something that depends on labels."""


class Observer:
    """Hears what happens to one side of a run; a subclass overrides what it wants to hear.

    The methods return at once, and raise nothing because of what happens outside.
    """

    def gathered(self, traffic: Mapping[str, Traffic]) -> None:
        """The side talks with these peers from now on; here the bytes are counted."""

    def at_step(self, done: int, total: int, records: int) -> None:
        """`done` of the job's `total` steps are done; `records` were processed in this process so far."""

    def waiting_for(self, peer: str | None) -> None:
        """The side waits for this peer; None: it computes."""

    def event(self, name: str, **facts: Fact) -> None:
        """Something happened: checkpoint, epoch, resumed, finished, ..."""

    def close(self) -> None:
        """The process does nothing more for the run."""


@dataclass
class Speed:
    """How many records one side trains on in this process, and how long that takes; its observer hears of each step."""

    observer: Observer
    total_steps: int
    records: int = 0
    seconds: float = 0.0

    def count(self, done: int, records: int) -> None:
        """Note that so many steps are done; the latest of them, which were not counted yet, had so many records."""
        self.records += records
        self.observer.at_step(done, self.total_steps, self.records)

    @property
    def per_second(self) -> float:
        """Records in a second; 0 if there were none."""
        return self.records / self.seconds if self.seconds else 0.0


class Observers(Observer):
    """Tells several observers, each known by a name: loggers, the display, the progress file.

    Guarantee: at a feature party they hear no fact but those in `FEATURE_FACTS`, whatever is reported. One that fails
    is told nothing more, with a notice; the run goes on.
    """

    def __init__(self, party: str, observers: Iterable[tuple[str, Observer]], notice: Notice) -> None:
        self._party, self._observers, self._notice = party, list(observers), notice

    def gathered(self, traffic: Mapping[str, Traffic]) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.gathered(traffic))

    def at_step(self, done: int, total: int, records: int) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.at_step(done, total, records))

    def waiting_for(self, peer: str | None) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.waiting_for(peer))

    def event(self, name: str, **facts: Fact) -> None:
        """Pass it on, without what a feature party must not know."""
        known = {key: fact for key, fact in facts.items() if self._party == LABEL_PARTY or key in FEATURE_FACTS}
        self._tell(lambda observer: observer.event(name, **known))

    def close(self) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.close())

    def _tell(self, act: Callable[[Observer], None]) -> None:
        for name, observer in self._observers.copy():
            try:
                act(observer)
            except Exception as error:
                self._observers.remove((name, observer))
                reason = " ".join(str(error).split()) or type(error).__name__
                self._notice(f"the logger {name} is given up: {reason}")


@dataclass(frozen=True)
class Watching:
    """Everybody who watches one process: all that it tells on its own side."""

    observer: Observer = field(default_factory=Observer)
    progress: Progress = no_progress
    notice: Notice = no_notice
    connections: Callable[[str, str], None] = lambda peer, sentence: None
    """Told about the connections of a network: the peer, and a sentence."""
    reason: Notice = no_notice
    """Told why something that a job leaves to tpsl is as it is."""


UNWATCHED = Watching()


class ProgressBar(Observer):
    """Shows on a progress bar how far a run in one process is, by its label party: all parties are as far.

    The observer of `watching` hears of steps and events.
    """

    def __init__(self, watching: Watching, epochs: int) -> None:
        self._watching, self._epochs = watching, epochs

    def at_step(self, done: int, total: int, records: int) -> None:
        """Show how many steps are done."""
        self._watching.observer.at_step(done, total, records)
        self._watching.progress(done, total, f"epoch {-(-done * self._epochs // total)}")

    def event(self, name: str, **facts: Fact) -> None:
        """Say where a run goes on, and where it stops early."""
        self._watching.observer.event(name, **facts)
        if name == "resumed":
            self._watching.notice(f"resuming after step {facts['step']:,}")
        elif name == "stopped early":
            self._watching.notice(f"the noisy hold-out got no better: training stops after step {facts['step']:,}")


@dataclass(frozen=True)
class RunProgress:
    """How far a running party is, how fast, and how long the rest takes at this speed.

    Nothing in it depends on labels: steps and speed are what every party sees of itself.
    """

    step: int
    steps: int
    """In all; a run that stops early has fewer."""
    samples_per_second: Finite = None
    seconds_left: Finite = None
    """Unknown until there is a speed."""

    @classmethod
    def read(cls, party_folder: Path) -> RunProgress | None:
        """Return what a party's folder says; None where nothing runs, or where the file cannot be read."""
        try:
            return _PROGRESS.validate_json(read_plain(party_folder / PROGRESS, _MOST_BYTES), strict=True)
        except (OSError, ValidationError):
            return None


_PROGRESS = TypeAdapter(RunProgress)


class ProgressFile(Observer):
    """Keeps `RunProgress` in a party's folder while it runs, written at most once a second, for those who look at it.

    The file is replaced whole, and nobody waits for the disk: it is worth nothing after a power failure. Where it
    cannot be written, on a full disk for instance, training goes on without it.
    """

    def __init__(self, party_folder: Path, every: float = 1.0) -> None:
        self._path, self._every = party_folder / PROGRESS, every
        self._pace, self._written = Pace(_WINDOW), -math.inf

    def at_step(self, done: int, total: int, records: int) -> None:
        """Write how far the party is, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._written < self._every:
            return
        self._written = now
        self._pace.add(done, records)
        left = self._pace.seconds_left(total)
        known = () if left is None else (round(self._pace.per_second[1], 1), round(left, 1))
        draft = draft_of(self._path)
        with suppress(OSError):  # the party has no folder yet, or no room
            with open_private(draft, "wb") as file:
                file.write(_PROGRESS.dump_json(RunProgress(done, total, *known)))
            draft.replace(self._path)

    def close(self) -> None:
        """Remove the file, if it is this observer's: nothing runs any more."""
        if self._written >= 0:
            self._path.unlink(missing_ok=True)
