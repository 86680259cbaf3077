"""Three ways to show a running side on stderr: a live line, plain lines, JSON lines."""

from __future__ import annotations

import json
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from tpsl.cli.console import printable
from tpsl.cli.live_state import LiveState

if TYPE_CHECKING:
    from tpsl.training.observer import Fact

_REFRESHES = 4  # of the live line, a second
_ONLY_FOR_MACHINES = ("checkpoint", "error")  # too many; said by the command itself


class Display(ABC):
    """Shows events at once, from any thread, and progress between `start` and `stop`."""

    @abstractmethod
    def start(self) -> None:
        """Begin to show progress."""

    @abstractmethod
    def stop(self) -> None:
        """Show no more progress."""

    @abstractmethod
    def event(self, name: str, facts: Mapping[str, Fact]) -> None:
        """Show that something happened."""


class LiveLine(Display):
    """On a terminal: one line that changes in place; events scroll past above it."""

    def __init__(self, console: Console, state: LiveState) -> None:
        self._console = console
        self._line = RichLive(
            get_renderable=lambda: Text(printable(state.line()), no_wrap=True, overflow="ellipsis"),
            console=console,
            refresh_per_second=_REFRESHES,
            transient=True,
            redirect_stdout=False,  # a command's result is no part of the display
        )

    def start(self) -> None:
        """Draw the line, a few times a second from now on."""
        self._line.start(refresh=True)

    def stop(self) -> None:
        """Remove the line."""
        self._line.stop()

    def event(self, name: str, facts: Mapping[str, Fact]) -> None:
        """Print a line above the live one."""
        if name not in (*_ONLY_FOR_MACHINES, "waiting"):  # the live line says for whom it waits
            self._console.print(sentence(name, facts), style="dim", highlight=False, markup=False, soft_wrap=True)


class _Lines(Display):
    """Lines in a log: progress every few seconds and at the end, if there was any."""

    def __init__(self, console: Console, every: float, state: LiveState) -> None:
        self._console, self._every, self._state = console, every, state
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tpsl live", daemon=True)
        self._shown: object = None

    def start(self) -> None:
        """Write progress from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Write the last progress."""
        self._stopped.set()
        self._thread.join()
        if not self._state.preparing:
            self._show_progress()

    @abstractmethod
    def _progress(self) -> str:
        """Return the line that says how far the job is."""

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            self._show_progress()

    def _show_progress(self) -> None:
        # Not the seconds of a wait: who waits for an hour does not need 720 lines.
        now = (self._state.preparing, self._state.progress, tuple(self._state.waiting_for()))
        if now != self._shown:
            self._shown = now
            self._write(self._progress())

    def _write(self, line: str) -> None:
        # A log that nobody reads any more (a closed pipe) must not stop the training.
        if not line:
            return
        with self._lock, suppress(OSError):
            self._console.file.write(line + "\n")
            self._console.file.flush()


class PlainLines(_Lines):
    """Not a terminal: sentences."""

    def event(self, name: str, facts: Mapping[str, Fact]) -> None:
        """Write a sentence."""
        if name not in _ONLY_FOR_MACHINES:
            self._write(sentence(name, facts))

    def _progress(self) -> str:
        return printable(self._state.line())


class JsonLines(_Lines):
    """For machines: one JSON object a line, each with time, event and party."""

    def __init__(self, console: Console, every: float, state: LiveState, party: str) -> None:
        super().__init__(console, every, state)
        self._party = party

    def event(self, name: str, facts: Mapping[str, Fact]) -> None:
        """Write an object."""
        self._write(self._object(name, facts))

    def _progress(self) -> str:
        done, total, records = self._state.progress
        speed = self._state.speed()
        facts: dict[str, Fact] = {
            "step": done,
            "steps": total,
            "epoch": self._state.epoch,
            "records": records,
            "samples_per_second": round(speed.samples_per_second, 1),
            "megabytes_per_second": round(speed.megabytes_per_second, 3),
            "waiting_for": ", ".join(self._state.waiting_for()),
        }
        return self._object("progress", facts)

    def _object(self, name: str, facts: Mapping[str, Fact]) -> str:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in facts.items()
        }
        return json.dumps({"time": time, "event": name, "party": self._party, **finite})


def sentence(name: str, facts: Mapping[str, Fact]) -> str:
    """Return an event in one line of plain words."""
    if name == "notice":
        return printable(str(facts["text"]))
    if {"peer", "reason"} <= facts.keys():
        return printable(f"{facts['peer']}: {facts['reason']}")
    head = f"{name} {_shown(facts[name])}" if name in facts else name
    others = [f"{key.replace('_', ' ')} {_shown(value)}" for key, value in facts.items() if key != name]
    return printable(" · ".join([head, *others]))


def _shown(value: Fact) -> str:
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) else value
