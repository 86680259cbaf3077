"""Prometheus metrics of one side. A feature party's hold nothing that depends on labels.

They are for this machine only, unless another address was asked for, as in a container. They are given out only under
the name of this machine, or that address, so that no site gets at a label party's figures through a browser.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tpsl.cli.live import LiveState
from tpsl.net.browsers import is_asked_from_here

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK = "127.0.0.1"


@contextmanager
def metrics_served(host: str, port: int, state: LiveState) -> Iterator[int]:
    """Serve the state at http://HOST:PORT/metrics until the block ends; yields the port, the real one if 0 was asked.

    The state is read when somebody asks, not before.
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
    registry.register(_State(state))  # only now: the server listens already
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class _State(Collector):
    def __init__(self, state: LiveState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        state = self._state
        done, total, records = state.done
        sent, received = state.traffic
        yield GaugeMetricFamily("tpsl_step", "Steps done.", value=done)
        yield GaugeMetricFamily("tpsl_steps_total", "Steps of the whole job.", value=total)
        yield CounterMetricFamily("tpsl_records", "Records processed by this process.", value=records)
        yield CounterMetricFamily("tpsl_bytes_sent", "Bytes sent to all peers.", value=sent)
        yield CounterMetricFamily("tpsl_bytes_received", "Bytes received from all peers.", value=received)
        connected = GaugeMetricFamily("tpsl_connected", "1 while the peer is connected.", labels=["peer"])
        again = CounterMetricFamily("tpsl_reconnections", "How often the peer came back.", labels=["peer"])
        waiting = GaugeMetricFamily("tpsl_waiting", "1 while this side waits for the peer.", labels=["peer"])
        waited_for = state.missing()
        for name, peer in state.peers.items():
            connected.add_metric([name], int(peer.connected))
            again.add_metric([name], max(peer.connections - 1, 0))
            waiting.add_metric([name], int(name in waited_for))
        yield from (connected, again, waiting)
