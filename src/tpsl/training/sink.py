"""Where training curves go: what a logger is to those who write one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tpsl.registry import ExtensionError


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


class Sink(Protocol):
    """Where curves go. Called from one thread; may be slow, may fail."""

    name: str

    def begin(self, step: int) -> None:
        """From this step on everything comes again: what an interrupted run wrote beyond it is void."""

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add one point, of this time since the epoch, to each of these curves."""

    def close(self, finished: bool) -> None:
        """Write what is left."""
