"""What `label serve` and `feature join` show while they run: a live line, plain lines, or JSON lines, on stderr.

`Live` is an observer, and shows the transport's `watch` and the `progress` and `notice` of loading:

    with Live("label", peers=["airport"], epochs=2) as live:
        serve(job, ..., watching=Watching(live, live.progress, live.notice, live.watch))

The events of a JSON log are listening, connected, lost, left, waiting, refused, resumed, restarted, checkpoint, epoch,
stopped early, progress, notice, finished and error. None has a fact that depends on true labels.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from tpsl.cli.console import printable, stderr
from tpsl.cli.live_state import LiveState
from tpsl.files import for_json
from tpsl.training.observer import Fact, Observer

if TYPE_CHECKING:
    from tpsl.cli.metrics_endpoint import MetricsEndpoint
    from tpsl.training.observer import Connection

WATCHED = ("connected", "lost", "left", "waiting", "refused")
"""How the transport's sentences about a peer begin."""

_EVERY = 5.0  # seconds between two plain lines or two progress events
_REFRESHES = 4  # of the live line, a second
_LONGEST = 300  # characters of a sentence about a peer, who may have written part of it
_ONLY_FOR_MACHINES = ("checkpoint", "error")  # too many; said by the command itself
_FACTS_FOR_MACHINES = ("validation_loss_se", "validation_log_likelihood")
_ENDS = ("_low", "_high")
"""What the ends of a number's interval are called."""


class Live(Observer):
    """Shows a running side until the `with` block ends.

    On a terminal one line changes in place, and events scroll past above it. In a log events are lines, and so is
    progress, every few seconds and at the end; with `log_json` each line is a JSON object. With `only_errors` it shows
    what ends this process and nothing else. The step loop pays for an assignment, no more.
    """

    def __init__(
        self,
        party: str,
        *,
        peers: Sequence[str],
        epochs: int,
        log_json: bool = False,
        metrics: tuple[str, int] | None = None,
        console: Console = stderr,
        every: float = _EVERY,
        only_errors: bool = False,
    ) -> None:
        self.state = LiveState(peers, epochs)
        self.endpoint: MetricsEndpoint | None = None
        self._party, self._metrics, self._console, self._every = party, metrics, console, every
        self._log_json, self._only_errors = log_json, only_errors
        self._on_terminal = console.is_terminal and not console.is_dumb_terminal and not (log_json or only_errors)
        self._lock = threading.RLock()
        self._stopped, self._shown = threading.Event(), object()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._metrics is not None:
            from tpsl.cli.metrics_endpoint import MetricsEndpoint

            self.endpoint = MetricsEndpoint.start(*self._metrics, self.state)
            self._open.callback(self.endpoint.stop)
            self.notice(f"metrics at http://{self._metrics[0]}:{self.endpoint.port}/metrics")
        if self._on_terminal:
            line = RichLive(
                get_renderable=lambda: Text(printable(self.state.line()), no_wrap=True, overflow="ellipsis"),
                console=self._console,
                refresh_per_second=_REFRESHES,
                transient=True,
                redirect_stdout=False,  # a command's result is no part of the display
            )
            self._open.callback(line.stop)
            line.start(refresh=True)
        elif not self._only_errors:
            thread = threading.Thread(target=self._log_progress, name="tpsl live", daemon=True)
            self._open.callback(thread.join)
            self._open.callback(self._stopped.set)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()
        if error is not None:
            reason = str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else repr(error))
            self._show("error", {"reason": reason})

    def gathered(self, channels: Mapping[str, Connection]) -> None:
        """Count the traffic of these connections from now on."""
        self.state.gathered(channels)

    def at_step(self, done: int, total: int, records: int) -> None:
        """Note how far the role is."""
        self.state.preparing, self.state.progress = None, (done, total, records)

    def waiting_for(self, peer: str | None) -> None:
        """Note that the role waits."""
        self.state.wait(peer)

    def event(self, name: str, **facts: Fact) -> None:
        """Show what happened."""
        self.state.preparing = None
        self._show(name, facts)

    def watch(self, peer: str, state: str) -> None:
        """Show a sentence of the transport about a peer that begins with one of WATCHED; from any thread."""
        peer, state = printable(peer)[:_LONGEST], printable(state)[:_LONGEST]
        first_word = state.partition(" ")[0].rstrip(":;,.")
        event = first_word if first_word in WATCHED else "waiting"
        with self._lock:
            self.state.preparing = None
            if self.state.peer_is(peer, event, state):
                self._show(event, {"peer": peer, "reason": state})

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show what is done before the first step, such as reading a file."""
        self.state.prepare(done, total or 0, note)

    def notice(self, text: str) -> None:
        """Tell the user something."""
        self._show("notice", {"text": text})

    def _show(self, name: str, facts: Mapping[str, Fact]) -> None:
        if self._only_errors and name != "error":
            return
        if self._log_json:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._write(json.dumps(for_json({"time": time, "event": name, "party": self._party, **facts})))
        elif name in _ONLY_FOR_MACHINES:
            return
        elif not self._on_terminal:
            self._write(sentence(name, facts))
        elif name != "waiting":  # the live line says for whom it waits
            self._console.print(sentence(name, facts), style="dim", highlight=False, markup=False, soft_wrap=True)

    def _log_progress(self) -> None:
        while not self._stopped.wait(self._every):
            self._log_progress_once()
        if self.state.progress[0] and not self.state.preparing:
            self.state.is_over = True
            self._log_progress_once()

    def _log_progress_once(self) -> None:
        # Not the seconds of a wait: a wait of an hour does not need 720 lines.
        now = (self.state.preparing, self.state.progress, tuple(self.state.waiting_for()))
        if now == self._shown:
            return
        self._shown = now
        if self._log_json:
            self._show("progress", self.state.facts())
        else:
            self._write(printable(self.state.line()))

    def _write(self, line: str) -> None:
        # A log that nobody reads any more (a closed pipe) must not stop the training.
        if line:
            with self._lock, suppress(OSError):
                self._console.file.write(line + "\n")
                self._console.file.flush()


def sentence(name: str, facts: Mapping[str, Fact]) -> str:
    """Return an event in one line of plain words."""
    if "text" in facts:
        return printable(str(facts["text"]))
    if {"peer", "reason"} <= facts.keys():
        return printable(f"{facts['peer']}: {facts['reason']}")
    head = f"{name} {_value_text(facts[name])}" if name in facts else name
    others = [
        f"{key.replace('_', ' ')} {_value_text(value)}{_interval(key, facts)}"
        for key, value in facts.items()
        if key not in (name, *_FACTS_FOR_MACHINES) and not key.endswith(_ENDS) and value == value  # NaN is not
    ]
    return printable(" · ".join([head, *others]))


def _interval(key: str, facts: Mapping[str, Fact]) -> str:
    low, high = (facts.get(key + end) for end in _ENDS)
    return "" if low is None or high is None else f" ({_value_text(low)} to {_value_text(high)})"


def _value_text(value: Fact) -> str:
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) else value
