"""The Prometheus endpoint, scraped as Prometheus does it."""

from __future__ import annotations

import io
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from tpsl.cli.live import Live
from tpsl.net.messages import Peer


@contextmanager
def running(side: Literal["label", "feature"], *peers: str, host: str = "127.0.0.1") -> Iterator[Live]:
    console = Console(file=io.StringIO())
    with Live(side, peers=peers, epochs=2, metrics=(host, 0), console=console) as live:
        yield live


def scrape(live: Live, accept: str = "text/plain") -> str:
    assert live.metrics_port
    request = urllib.request.Request(f"http://127.0.0.1:{live.metrics_port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[str, float]:
    """Values by name, with the peer in brackets."""
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_label_side() -> None:
    with running("label", "airport", "bank") as live:
        live.event("listening", address="here")
        live.watch("airport", "connected")
        live.watch("airport", "lost: gone")
        live.watch("airport", "connected")
        live.at_step(7, 20, 700)
        assert samples(scrape(live)) == {
            "tpsl_step": 7,
            "tpsl_steps_total": 20,
            "tpsl_records_total": 700,
            "tpsl_bytes_sent_total": 0,
            "tpsl_bytes_received_total": 0,
            "tpsl_connected[airport]": 1,
            "tpsl_connected[bank]": 0,
            "tpsl_reconnections_total[airport]": 1,
            "tpsl_reconnections_total[bank]": 0,
            "tpsl_waiting[airport]": 0,
            "tpsl_waiting[bank]": 1,
        }
        live.event("epoch", epoch=1, validation_auc=0.75)
        assert "auc" not in scrape(live)


def test_the_feature_side_has_nothing_that_depends_on_labels() -> None:
    with running("feature", "label") as live:
        live.watch("label", "connected")
        live.event("epoch", epoch=1)
        assert {name.partition("[")[0] for name in samples(scrape(live))} == {
            "tpsl_step",
            "tpsl_steps_total",
            "tpsl_records_total",
            "tpsl_bytes_sent_total",
            "tpsl_bytes_received_total",
            "tpsl_connected",
            "tpsl_reconnections_total",
            "tpsl_waiting",
        }


def test_bytes_are_those_of_the_channels() -> None:
    ours = Peer("airport")
    with running("label", "airport") as live:
        live.gathered({"airport": ours})
        ours.traffic.bytes_sent += 1000
        found = samples(scrape(live))
        assert found["tpsl_bytes_sent_total"] == ours.traffic.bytes_sent
        assert found["tpsl_bytes_received_total"] == 0


def test_names_in_any_script_and_the_format_of_newer_scrapers() -> None:
    with running("label", "银行", "b-2") as live:
        live.watch("银行", "connected")
        text = scrape(live, "application/openmetrics-text; version=1.0.0")
        assert text.endswith("# EOF\n")
        connected = {
            sample.labels["peer"]: sample.value
            for family in open_metrics(text)
            for sample in family.samples
            if sample.name == "tpsl_connected"
        }
        assert connected == {"银行": 1, "b-2": 0}


def test_it_is_there_for_this_machine_only_and_gone_afterwards() -> None:
    with running("label", "airport") as live:
        assert live.metrics_port
        port = live.metrics_port
        scrape(live)
        # All of 127/8 is this machine: a server on every address would answer here.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=60)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        live = Live("label", peers=[], epochs=1, metrics=("127.0.0.1", port), console=Console(file=io.StringIO()))
        with (
            pytest.raises(ValueError, match=rf"metrics cannot be served on 127\.0\.0\.1:{port} \(Address already"),
            live,
        ):
            pass


def answer(live: Live, *headers: str) -> str:
    assert live.metrics_port
    with socket.create_connection(("127.0.0.1", live.metrics_port), timeout=60) as connection:
        connection.sendall("\r\n".join(("GET /metrics HTTP/1.1", *headers, "", "")).encode())
        return connection.makefile("rb").read().decode()


def test_no_other_site_gets_the_figures_through_a_browser() -> None:
    with running("label", "airport") as live:
        assert live.metrics_port
        live.at_step(7, 20, 700)
        own = f"Host: 127.0.0.1:{live.metrics_port}"
        rebound = [
            ["Host: evil.example"],
            [f"Host: evil.example:{live.metrics_port}"],
            ["Host: 127.0.0.1.evil.example"],
            ["Host: [::1]"],
            [],
            [own, "Host: evil.example"],
            [own, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"],
            [own, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: cors"],
        ]
        for headers in rebound:
            text = answer(live, *headers)
            assert text.split()[1] == "403", headers
            assert "tpsl" not in text
        for headers in ([own], ["Host: localhost:9000"], [own, "Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"]):
            text = answer(live, *headers)
            assert text.split()[1] == "200", headers
            assert "tpsl_step 7.0" in text


def test_another_machine_asks_by_the_address_in_numbers() -> None:
    """As kubelet and Prometheus do. A site that gives its own name to this machine has a name, not a number."""
    with running("label", "airport", host="0.0.0.0") as live:
        for host in ("10.1.2.3:9101", "10.1.2.3", "[fd00::7]:9101", "localhost"):
            assert answer(live, f"Host: {host}").split()[1] == "200", host
        for host in ("evil.example", "10.1.2.3.evil.example", "10.1.2.3,evil.example", "evil@10.1.2.3", "[::1", ""):
            assert answer(live, f"Host: {host}").split()[1] == "403", host
        assert answer(live, "Host: 10.1.2.3", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors").split()[1] == "403"
