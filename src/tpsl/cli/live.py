"""What `label serve` and `feature join` show while they run: a live line, plain lines, or JSON lines, on stderr.

`Live` is the role's `Observer`, the transport's `watch`, and the `progress` and `notice` of loading:

    with Live("label", peers=["airport"], epochs=2) as live:
        serve(job, ..., watching=Watching(live, live.progress, live.notice, live.watch))

The events of a JSON log are listening, connected, lost, left, waiting, refused, resumed, restarted, checkpoint, epoch,
stopped early, progress, notice, finished and error. None has a fact that depends on true labels.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console

from tpsl.cli.console import printable, stderr
from tpsl.cli.live_displays import Display, Lines, LiveLine, OnlyErrors
from tpsl.cli.live_state import LiveState
from tpsl.training.observer import FEATURE_FACTS
from tpsl.transport.peers import LABEL_PARTY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpsl.cli.metrics_endpoint import MetricsEndpoint
    from tpsl.training.observer import Fact, Observer
    from tpsl.transport.channel import Channel

WATCHED = ("connected", "lost", "left", "waiting", "refused")
"""How the transport's sentences about a peer begin."""

_EVERY = 5.0  # seconds between two plain lines or two progress events
_LONGEST = 300  # characters of a sentence about a peer, who may have written part of it


class Live:
    """Shows a running side until the `with` block ends, and passes steps and events on to loggers.

    The step loop pays for an assignment, no more; for a logger, what that costs.
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
        self.loggers: list[Observer] = []
        """Told of every step and event too."""
        self._party, self._metrics = party, metrics
        self._lock = threading.Lock()
        on_terminal = console.is_terminal and not console.is_dumb_terminal and not log_json
        lines = Lines(console, every, self.state, party if log_json else None)
        self._display: Display = LiveLine(console, self.state) if on_terminal else lines
        if only_errors:
            self._display = OnlyErrors(lines)

    def __enter__(self) -> Self:
        if self._metrics is not None:
            from tpsl.cli.metrics_endpoint import MetricsEndpoint

            host, port = self._metrics
            self.endpoint = MetricsEndpoint.start(host, port, self.state)
            self.notice(f"metrics at http://{host}:{self.endpoint.port}/metrics")
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._display.stop()
        if error is not None:
            reason = str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else repr(error))
            self._display.event("error", {"reason": reason})
        if self.endpoint:
            self.endpoint.stop()

    def gathered(self, channels: Mapping[str, Channel]) -> None:
        """Count the traffic of these channels from now on."""
        self.state.gathered(channels)

    def at_step(self, done: int, total: int, records: int) -> None:
        """Note how far the role is."""
        self.state.preparing, self.state.progress = None, (done, total, records)
        for logger in self.loggers:
            logger.at_step(done, total, records)

    def waiting_for(self, peer: str | None) -> None:
        """Note that the role waits."""
        self.state.wait(peer)

    def event(self, name: str, **facts: Fact) -> None:
        """Show what happened; on the feature side a fact that is not in FEATURE_FACTS is a defect and raises."""
        if self._party != LABEL_PARTY and not facts.keys() <= FEATURE_FACTS:
            unknown = ", ".join(sorted(facts.keys() - FEATURE_FACTS))
            raise RuntimeError(f"the feature side must not know {unknown}: it could depend on labels")
        self.state.preparing = None
        self._display.event(name, facts)
        for logger in self.loggers:
            logger.event(name, **facts)

    def watch(self, peer: str, state: str) -> None:
        """Show a sentence of the transport about a peer that begins with one of WATCHED; from any thread."""
        peer, state = printable(peer)[:_LONGEST], printable(state)[:_LONGEST]
        first_word = state.partition(" ")[0].rstrip(":;,.")
        event = first_word if first_word in WATCHED else "waiting"
        with self._lock:
            self.state.preparing = None
            if self.state.peer_is(peer, event, state):
                self._display.event(event, {"peer": peer, "reason": state})

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show what is done before the first step, such as reading a file."""
        self.state.prepare(done, total or 0, note)

    def notice(self, text: str) -> None:
        """Tell the user something."""
        self._display.event("notice", {"text": text})
