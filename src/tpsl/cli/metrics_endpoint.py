"""Prometheus metrics of one side. A feature party's hold nothing that depends on labels.

They are for this machine only, unless another address was asked for, as in a container. They are given out only under
the name of this machine, or that address, so that no site gets at a label party's figures through a browser.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tpsl.cli.live_state import LiveState
from tpsl.serving.browsers import is_asked_from_here

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class MetricsEndpoint:
    """A running endpoint; `port` is the real one if 0 was asked for."""

    _server: WSGIServer

    @classmethod
    def start(cls, host: str, port: int, state: LiveState) -> MetricsEndpoint:
        """Serve the state at http://HOST:PORT/metrics; it is read when somebody asks, not before."""
        registry = CollectorRegistry(auto_describe=False)
        try:
            server, _ = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise ValueError(f"the metrics cannot be served on {host}:{port} ({error.strerror})") from error
        server.set_app(_not_for_sites(make_wsgi_app(registry), or_by_number=host != LOOPBACK))
        registry.register(_State(state))  # only now: the server listens already
        return cls(server)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    def stop(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()


def _not_for_sites(app: WSGIApplication, *, or_by_number: bool) -> WSGIApplication:
    """Return the application with the live page's check of who asks."""

    def checked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        hosts = [environ["HTTP_HOST"]] if "HTTP_HOST" in environ else []  # several are one here, with commas
        site, mode = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_SEC_FETCH_MODE")
        if is_asked_from_here(hosts, site, mode, or_by_number=or_by_number):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"Metrics are given out only under the name of this machine.\n"]

    return checked


class _State(Collector):
    def __init__(self, state: LiveState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        state = self._state
        done, total, records = state.progress
        yield GaugeMetricFamily("tpsl_step", "Steps done.", value=done)
        yield GaugeMetricFamily("tpsl_steps_total", "Steps of the whole job.", value=total)
        yield CounterMetricFamily("tpsl_records", "Records processed by this process.", value=records)
        yield CounterMetricFamily("tpsl_bytes_sent", "Bytes sent to all peers.", value=state.bytes_sent)
        yield CounterMetricFamily("tpsl_bytes_received", "Bytes received from all peers.", value=state.bytes_received)
        connected = GaugeMetricFamily("tpsl_connected", "1 while the peer is connected.", labels=["peer"])
        again = CounterMetricFamily("tpsl_reconnections", "How often the peer came back.", labels=["peer"])
        waiting = GaugeMetricFamily("tpsl_waiting", "1 while this side waits for the peer.", labels=["peer"])
        waited_for = state.waiting_for()
        for name, peer in state.peers.items():
            connected.add_metric([name], int(peer.connected))
            again.add_metric([name], max(peer.connections - 1, 0))
            waiting.add_metric([name], int(name in waited_for))
        yield from (connected, again, waiting)
