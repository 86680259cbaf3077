"""Ways to show a running side on stderr: a live line, or lines in a log, in words or as JSON; or only what ends it."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from tpsl.cli.console import printable
from tpsl.cli.live_state import LiveState
from tpsl.files import for_json

if TYPE_CHECKING:
    from tpsl.training.observer import Fact

_REFRESHES = 4  # of the live line, a second
_ONLY_FOR_MACHINES = ("checkpoint", "error")  # too many; said by the command itself
_ENDS = ("_low", "_high")
"""What the ends of a number's interval are called."""
_FACTS_FOR_MACHINES = ("validation_loss_se", "validation_log_likelihood")


class Display(Protocol):
    """Shows events at once, from any thread, and progress between `start` and `stop`."""

    def start(self) -> None:
        """Begin to show progress."""

    def stop(self) -> None:
        """Show no more progress."""

    def event(self, name: str, facts: Mapping[str, Fact]) -> None:
        """Show that something happened."""


class LiveLine:
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
        self.stop = self._line.stop

    def start(self) -> None:
        """Draw the line, a few times a second from now on."""
        self._line.start(refresh=True)

    def event(self, name: str, facts: Mapping[str, Fact]) -> None:
        """Print a line above the live one."""
        if name not in (*_ONLY_FOR_MACHINES, "waiting"):  # the live line says for whom it waits
            self._console.print(sentence(name, facts), style="dim", highlight=False, markup=False, soft_wrap=True)


class Lines:
    """Lines in a log: events, and progress every few seconds and at the end, if there was any.

    With `party` for machines: one JSON object a line, each with time, event and party.
    """

    def __init__(self, console: Console, every: float, state: LiveState, party: str | None = None) -> None:
        self._console, self._every, self._state, self._party = console, every, state, party
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tpsl live", daemon=True)
        self._shown: object = None
        self.start = self._thread.start

    def stop(self) -> None:
        """Write the last progress."""
        self._stopped.set()
        self._thread.join()
        if self._state.progress[0] and not self._state.preparing:
            self._state.is_over = True
            self._show_progress()

    def event(self, name: str, facts: Mapping[str, Fact]) -> None:
        """Write a sentence, or an object."""
        if self._party is not None:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._write(json.dumps(for_json({"time": time, "event": name, "party": self._party, **facts})))
        elif name not in _ONLY_FOR_MACHINES:
            self._write(sentence(name, facts))

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            self._show_progress()

    def _show_progress(self) -> None:
        # Not the seconds of a wait: who waits for an hour does not need 720 lines.
        now = (self._state.preparing, self._state.progress, tuple(self._state.waiting_for()))
        if now == self._shown:
            return
        self._shown = now
        if self._party is None:
            self._write(printable(self._state.line()))
        else:
            self.event("progress", self._state.facts())

    def _write(self, line: str) -> None:
        # A log that nobody reads any more (a closed pipe) must not stop the training.
        if line:
            with self._lock, suppress(OSError):
                self._console.file.write(line + "\n")
                self._console.file.flush()


class OnlyErrors:
    """What ends this process, and nothing else: the first worker of the party shows the rest."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def start(self) -> None:
        """Show no progress."""

    def stop(self) -> None:
        """Show no progress."""

    def event(self, name: str, facts: Mapping[str, Fact]) -> None:
        """Show an error."""
        if name == "error":
            self._display.event(name, facts)


def sentence(name: str, facts: Mapping[str, Fact]) -> str:
    """Return an event in one line of plain words."""
    if "text" in facts:
        return printable(str(facts["text"]))
    if {"peer", "reason"} <= facts.keys():
        return printable(f"{facts['peer']}: {facts['reason']}")
    head = f"{name} {_shown(facts[name])}" if name in facts else name
    others = [
        f"{key.replace('_', ' ')} {_shown(value)}{_interval(key, facts)}"
        for key, value in facts.items()
        if key not in (name, *_FACTS_FOR_MACHINES) and not key.endswith(_ENDS) and not _is_nan(value)
    ]
    return printable(" · ".join([head, *others]))


def _interval(key: str, facts: Mapping[str, Fact]) -> str:
    low, high = (facts.get(key + end) for end in _ENDS)
    return "" if low is None or high is None else f" ({_shown(low)} to {_shown(high)})"


def _is_nan(value: Fact) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _shown(value: Fact) -> str:
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) else value
