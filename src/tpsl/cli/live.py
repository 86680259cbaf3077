"""What `label serve` and `feature join` show while they run: a live line, plain lines, or JSON lines, on stderr.

The events of a JSON log are listening, connected, lost, waiting, refused, resumed, restarted, checkpoint, epoch,
stopped early, progress, notice, finished and error. None has a fact that depends on true labels.

Metrics for Prometheus are for this machine only, unless another address was asked for, as in a container; a feature
party's hold nothing that depends on labels.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from tpsl.cli.console import printable, stderr, time_left
from tpsl.files import for_json
from tpsl.net.messages import Traffic
from tpsl.progress import Pace
from tpsl.run.observer import Fact, Observer
from tpsl.serving.browsers import is_asked_from_here

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

WATCHED = ("connected", "lost", "waiting", "refused")
"""How the transport's sentences about a peer begin."""
_WINDOW = 10.0  # seconds over which speeds are averaged
_NOTABLE_WAIT = 1.0  # seconds: every step waits a little for the other side
_LONGEST = 300  # characters of a sentence about a peer, who may have written part of it
_ONLY_FOR_MACHINES = ("checkpoint", "error")  # too many; said by the command itself
_FACTS_FOR_MACHINES = ("validation_loss_se", "validation_log_likelihood")
_ENDS = ("_low", "_high")  # what the ends of a number's interval are called
LOOPBACK = "127.0.0.1"


@dataclass
class Peer:
    """One peer as the transport last described it."""

    connected: bool = False
    connections: int = 0
    state: str = "not here yet"


class LiveState(Observer):
    """What one side knows of its running job: steps, speed, peers. The live line, the logs and the metrics read it.

    The step loop only assigns; everything else is computed when somebody looks. It grows with the job, not with what
    peers do: only the job's own peers are kept.
    """

    def __init__(self, peers: Sequence[str], epochs: int, may_end_early: bool = False) -> None:
        self.peers, self.epochs, self.may_end_early = {name: Peer() for name in peers}, epochs, may_end_early
        self.is_over = False  # whether nothing more is to come, so that no time is left
        self.preparing: str | None = "preparing"
        self.done: tuple[int, int, int] = (0, 0, 0)
        """Steps done, steps in all, records; one tuple, so that no reader sees half of an update."""
        self._awaited: tuple[str | None, float] = (None, 0.0)  # the peer the role waits for, and since when
        self._prepared: tuple[tuple[str, int], Pace] = (("", 0), Pace(0.0))  # what, how much of it, and how fast
        self._traffics: list[Traffic] = []
        self._pace = Pace(_WINDOW)

    def gathered(self, traffic: Mapping[str, Traffic]) -> None:
        """Count what goes through to these peers."""
        self._traffics = [*traffic.values()]
        # The next line to be shown has a speed already, in which no waiting for these peers counts.
        self._pace = Pace(_WINDOW)
        self.speed()

    def at_step(self, done: int, total: int, records: int) -> None:
        """Note how far the role is."""
        self.preparing, self.done = None, (done, total, records)

    def waiting_for(self, peer: str | None) -> None:
        """Note that the role waits for a peer (None: computes) from now on."""
        if peer is not None:
            self.preparing = None
        self._awaited = (peer, time.monotonic())

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Note what is done before the first step, such as reading a file, and how much of it."""
        if self._prepared[0] != (note, total or 0):
            self._prepared = (note, total or 0), Pace(60.0)
        pace = self._prepared[1]
        pace.add(done)
        count = f"{done:,}/{total:,}" if total else f"{done:,}" if done else ""
        left = time_left(pace.seconds_left(total or 0))
        self.preparing = " · ".join(filter(None, (f"{note} {count}".rstrip(), left)))

    def peer_is(self, name: str, event: str, state: str) -> bool:
        """Note what the transport says of a peer; return whether that is news."""
        peer = self.peers.get(name)
        if peer is None or (event == "refused" and peer.connected):  # somebody else came in its name
            return True
        connected = event == "connected"
        news = connected or (peer.connected, peer.state) != (False, state)
        peer.connected, peer.state = connected, state
        peer.connections += connected
        return news

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent to all peers, and received from them."""
        return sum(each.bytes_sent for each in self._traffics), sum(each.bytes_received for each in self._traffics)

    @property
    def epoch(self) -> int:
        """The epoch of the latest step, from 1."""
        done, total, _ = self.done
        return max(-(-done * self.epochs // max(total, 1)), 1)

    def missing(self) -> dict[str, str]:
        """Return the peers this side waits for, each with the reason."""
        if self.preparing:
            return {}
        absent = {name: peer for name, peer in self.peers.items() if not peer.connected}
        found = {name: peer.state.removeprefix("waiting: ") for name, peer in absent.items()}
        peer, since = self._awaited
        seconds = time.monotonic() - since
        if peer is not None and peer not in found and seconds >= _NOTABLE_WAIT:
            found[peer] = f"{seconds:,.0f} s"
        return found

    def speed(self) -> tuple[float, float]:
        """Return samples and megabytes a second, means over the last seconds; for one thread, every now and then."""
        steps, _, records = self.done
        self._pace.add(steps, records, sum(self.traffic))
        _, samples, transferred = self._pace.per_second
        return samples, transferred / 1e6

    def facts(self) -> dict[str, Fact]:
        """Return all of it for machines."""
        done, total, records = self.done
        samples, megabytes = self.speed()
        return {
            "step": done,
            "steps": total,
            "epoch": self.epoch,
            "records": records,
            "samples_per_second": round(samples, 1),
            "megabytes_per_second": round(megabytes, 3),
            "waiting_for": ", ".join(self.missing()),
        }

    def line(self) -> str:
        """Return all of it in one line."""
        if self.preparing:
            return self.preparing
        done, total, _ = self.done
        samples, megabytes = self.speed()
        step = [f"step {done:,}/{total:,}", f"epoch {self.epoch:,}"]
        parts = [*step, f"{samples:,.0f} samples/s", f"{megabytes:,.1f} MB/s"] if total else []
        left = None if self.is_over else self._pace.seconds_left(total)
        if waiting := ", ".join(f"{peer} ({reason})" for peer, reason in self.missing().items()):
            parts.append(f"waiting for {waiting}")
        elif left is not None:
            parts.append(time_left(left, at_most=self.may_end_early))
        return " · ".join(parts)


class Live(LiveState):
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
        may_end_early: bool = False,
        log_json: bool = False,
        metrics: tuple[str, int] | None = None,
        console: Console = stderr,
        every: float = 5.0,
        only_errors: bool = False,
    ) -> None:
        super().__init__(peers, epochs, may_end_early)
        self.metrics_port: int | None = None
        self._party, self._metrics, self._console, self._every = party, metrics, console, every
        self._log_json, self._only_errors = log_json, only_errors
        self._on_terminal = console.is_terminal and not console.is_dumb_terminal and not (log_json or only_errors)
        self._lock, self._stopped, self._open = threading.RLock(), threading.Event(), ExitStack()

    def __enter__(self) -> Self:
        if self._metrics is not None:
            self.metrics_port = self._open.enter_context(metrics_served(*self._metrics, self))
            self.notice(f"metrics at http://{self._metrics[0]}:{self.metrics_port}/metrics")
        if self._on_terminal:
            line = RichLive(
                get_renderable=lambda: Text(printable(self.line()), no_wrap=True, overflow="ellipsis"),
                console=self._console,
                refresh_per_second=4,
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

    def event(self, name: str, **facts: Fact) -> None:
        """Show what happened."""
        self.preparing = None
        self._show(name, facts)

    def watch(self, peer: str, state: str) -> None:
        """Show a sentence of the transport about a peer that begins with one of WATCHED; from any thread."""
        peer, state = printable(peer)[:_LONGEST], printable(state)[:_LONGEST]
        first_word = state.partition(" ")[0].rstrip(":;,.")
        event = first_word if first_word in WATCHED else "waiting"
        with self._lock:
            self.preparing = None
            if self.peer_is(peer, event, state):
                self._show(event, {"peer": peer, "reason": state})

    def notice(self, text: str) -> None:
        """Tell the user something."""
        self._show("notice", {"text": text})

    def _show(self, name: str, facts: Mapping[str, Fact]) -> None:
        if self._only_errors and name != "error":
            return
        if self._log_json:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._write(json.dumps(for_json({"time": now, "event": name, "party": self._party, **facts})))
        elif name in _ONLY_FOR_MACHINES:
            return
        elif not self._on_terminal:
            self._write(sentence(name, facts))
        elif name != "waiting":  # the live line says for whom it waits
            self._console.print(sentence(name, facts), style="dim", highlight=False, markup=False, soft_wrap=True)

    def _log_progress(self) -> None:
        shown: object = None
        while not self.is_over:
            ended = self._stopped.wait(self._every)
            if ended and (self.preparing or not self.done[0]):
                return
            self.is_over = ended
            # Not the seconds of a wait: a wait of an hour does not need 720 lines.
            now = (self.preparing, self.done, tuple(self.missing()))
            if now != shown and self._log_json:
                self._show("progress", self.facts())
            elif now != shown:
                self._write(printable(self.line()))
            shown = now

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
    shown = {
        key: value if isinstance(value, str) else f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"
        for key, value in facts.items()
    }
    words = [f"{name} {shown[name]}" if name in facts else name]
    for key, value in facts.items():
        if key in (name, *_FACTS_FOR_MACHINES) or key.endswith(_ENDS) or value != value:  # NaN is not
            continue
        low, high = (shown.get(key + end) for end in _ENDS)
        interval = "" if low is None or high is None else f" ({low} to {high})"
        words.append(f"{key.replace('_', ' ')} {shown[key]}{interval}")
    return printable(" · ".join(words))


@contextmanager
def metrics_served(host: str, port: int, state: LiveState) -> Iterator[int]:
    """Serve the state at http://HOST:PORT/metrics until the block ends; yields the port, the real one if 0 was asked.

    The state is read when somebody asks, not before. It is given out only under the name of this machine, or that
    address, so that no site gets at a label party's figures through a browser.
    """
    registry = CollectorRegistry(auto_describe=False)
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ValueError(f"the metrics cannot be served on {host}:{port} ({error.strerror})") from error
    app: WSGIApplication = make_wsgi_app(registry)

    def not_for_sites(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        hosts = [environ["HTTP_HOST"]] if "HTTP_HOST" in environ else []  # several are one here, with commas
        site, mode = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_SEC_FETCH_MODE")
        if is_asked_from_here(hosts, site, mode, or_by_number=host != LOOPBACK):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"Metrics are given out only under the name of this machine.\n"]

    server.set_app(not_for_sites)
    registry.register(_Metrics(state))  # only now: the server listens already
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class _Metrics(Collector):
    state: LiveState

    def collect(self) -> Iterable[Metric]:
        done, total, records = self.state.done
        sent, received = self.state.traffic
        yield GaugeMetricFamily("tpsl_step", "Steps done.", value=done)
        yield GaugeMetricFamily("tpsl_steps_total", "Steps of the whole job.", value=total)
        yield CounterMetricFamily("tpsl_records", "Records processed by this process.", value=records)
        yield CounterMetricFamily("tpsl_bytes_sent", "Bytes sent to all peers.", value=sent)
        yield CounterMetricFamily("tpsl_bytes_received", "Bytes received from all peers.", value=received)
        connected = GaugeMetricFamily("tpsl_connected", "1 while the peer is connected.", labels=["peer"])
        again = CounterMetricFamily("tpsl_reconnections", "How often the peer came back.", labels=["peer"])
        waiting = GaugeMetricFamily("tpsl_waiting", "1 while this side waits for the peer.", labels=["peer"])
        waited_for = self.state.missing()
        for name, peer in self.state.peers.items():
            connected.add_metric([name], int(peer.connected))
            again.add_metric([name], max(peer.connections - 1, 0))
            waiting.add_metric([name], int(name in waited_for))
        yield from (connected, again, waiting)
