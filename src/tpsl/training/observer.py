"""Observers follow one side of a run: the display, curves, metrics, the progress file, and those of users.

Nothing of it crosses the border. An observer of a feature party hears of no fact that could depend on labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tpsl.net.peers import LABEL_PARTY
from tpsl.progress import Notice, Progress, no_notice, no_progress

Fact = str | int | float

FEATURE_FACTS = frozenset({"address", "epoch", "peer", "reason", "step", "text"})
"""All that an event of the feature side may carry: no name here stands for something that depends on labels."""


class Traffic(Protocol):
    """What went through a connection so far; the numbers grow."""

    bytes_sent: int
    bytes_received: int


class Connection(Protocol):
    """As much of a connection as observers look at."""

    @property
    def traffic(self) -> Traffic:
        """What went through it so far."""


class Observer:
    """Hears what happens to one side of a run; a subclass overrides what it wants to hear.

    The methods return at once, and raise nothing because of what happens outside.
    """

    def gathered(self, channels: Mapping[str, Connection]) -> None:
        """The side talks through these connections from now on, by the peer's name."""

    def at_step(self, done: int, total: int, records: int) -> None:
        """`done` of the job's `total` steps are done; `records` were processed in this process so far."""

    def waiting_for(self, peer: str | None) -> None:
        """The side waits for this peer; None: it computes."""

    def event(self, name: str, **facts: Fact) -> None:
        """Something happened: checkpoint, epoch, resumed, finished, ..."""


NullObserver = Observer
"""Hears everything and does nothing."""


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
    """Tells several observers, each known by a name.

    Guarantee: at a feature party they hear no fact but those in `FEATURE_FACTS`, whatever is reported. One that fails
    is told nothing more, with a notice; the run goes on.
    """

    def __init__(self, party: str, observers: Mapping[str, Observer], notice: Notice) -> None:
        self._party, self._observers, self._notice = party, dict(observers), notice

    def gathered(self, channels: Mapping[str, Connection]) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.gathered(channels))

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

    def _tell(self, act: Callable[[Observer], None]) -> None:
        for name, observer in list(self._observers.items()):
            try:
                act(observer)
            except Exception as error:
                del self._observers[name]
                self._notice(f"the observer {name} is given up: {reason_of(error)}")


class FilteredObserver(Observer):
    """Tells an observer a part of what happens: peers or none, steps or none, and events but those of these names."""

    def __init__(
        self, observer: Observer, *, peers: bool = True, steps: bool = True, without: Collection[str] = ()
    ) -> None:
        self._observer, self._peers, self._steps, self._without = observer, peers, steps, without

    def gathered(self, channels: Mapping[str, Connection]) -> None:
        """Pass it on."""
        if self._peers:
            self._observer.gathered(channels)

    def at_step(self, done: int, total: int, records: int) -> None:
        """Pass it on."""
        if self._steps:
            self._observer.at_step(done, total, records)

    def waiting_for(self, peer: str | None) -> None:
        """Pass it on."""
        if self._peers:
            self._observer.waiting_for(peer)

    def event(self, name: str, **facts: Fact) -> None:
        """Pass it on."""
        if name not in self._without:
            self._observer.event(name, **facts)


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

    The observer of `watching` hears of steps and events. Waiting for another of its `parties` is not shown: they
    are in the same process.
    """

    def __init__(self, watching: Watching, epochs: int, parties: Collection[str]) -> None:
        self._watching, self._epochs, self._parties = watching, epochs, parties
        self._done, self._has_waited = (0, 0), False

    def at_step(self, done: int, total: int, records: int) -> None:
        """Show how many steps are done."""
        self._done = (done, total)
        self._watching.observer.at_step(done, total, records)
        self._watching.progress(done, total, f"epoch {-(-done * self._epochs // total)}")

    def waiting_for(self, peer: str | None) -> None:
        """Say that labels or the vault are waited for."""
        if peer is None or peer in self._parties:
            return
        self._watching.progress(*self._done, f"waiting for {peer}")
        if not self._has_waited:  # where there is no progress bar
            self._watching.notice(f"waiting for {peer}")
            self._has_waited = True

    def event(self, name: str, **facts: Fact) -> None:
        """Say where a run goes on, and where it stops early."""
        self._watching.observer.event(name, **facts)
        if name == "resumed":
            self._watching.notice(f"resuming after step {facts['step']:,}")
        elif name == "stopped early":
            self._watching.notice(f"the noisy hold-out got no better: training stops after step {facts['step']:,}")


class PreparationNotices(Observer):
    """Says what a feature party does before the first step."""

    def __init__(self, party: str, notice: Notice) -> None:
        self._party, self._notice = party, notice

    def event(self, name: str, **facts: Fact) -> None:
        """Say what is prepared."""
        if name in ("pretraining", "wide part"):
            self._notice(f"{self._party}: {facts['text']}")


def reason_of(error: Exception) -> str:
    """Return what an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
