"""What a role tells those who watch it on its own side: the live line, the logs, the metrics. None of it crosses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tpsl.progress import Notice, Progress, no_notice, no_progress
from tpsl.transport.channel import Channel
from tpsl.transport.link import Watch

Fact = str | int | float


FEATURE_FACTS = frozenset({"address", "epoch", "peer", "reason", "step", "text"})
"""All that an event of the feature side may carry: no name here stands for something that depends on labels."""


class Observer(Protocol):
    """Listens to a role. Its methods return at once and do not raise because of what happens outside."""

    def gathered(self, channels: Mapping[str, Channel]) -> None:
        """The role talks through these channels from now on; their traffic can be watched."""
        return

    def at_step(self, done: int, total: int, records: int) -> None:
        """`done` of the job's `total` steps are done; `records` were processed in this process so far."""
        return

    def waiting_for(self, peer: str | None) -> None:
        """The role waits for this peer; None: it computes."""
        return

    def event(self, name: str, **facts: Fact) -> None:
        """Something happened: checkpoint, epoch, resumed, finished, ...

        On the feature side no fact may depend on labels: an observer of that side refuses names it does not know.
        """
        return


class NullObserver(Observer):
    """Does nothing with what it is told."""


def _no_watch(peer: str, sentence: str) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Watching:
    """Everybody who watches one process: all that it tells on its own side."""

    observer: Observer = field(default_factory=NullObserver)
    progress: Progress = no_progress
    notice: Notice = no_notice
    connections: Watch = _no_watch
    """Told about the connections of a network."""
    reason: Notice = no_notice
    """Told why something that a job leaves to tpsl is as it is."""


UNWATCHED = Watching()
