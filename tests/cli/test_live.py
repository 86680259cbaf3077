"""What a side shows while it runs: on a terminal, in a log, as metrics; and what the feature side may not."""

from __future__ import annotations

import io
import json
import math
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from tpsl.cli import live as live_module
from tpsl.cli.live import Live, LiveState, sentence
from tpsl.net.messages import Traffic
from tpsl.run.evaluation import TestMetrics
from tpsl.run.observer import FEATURE_FACTS, Observers


def log(**options: Any) -> tuple[Live, io.StringIO]:
    """A side whose stderr is a file."""
    written = io.StringIO()
    settings = {"peers": ["airport", "bank"], "epochs": 2, "every": 60.0, **options}
    return Live("label", console=Console(file=written), **settings), written


def terminal(side: Literal["label", "feature"] = "label", width: int = 200) -> tuple[Live, io.StringIO]:
    """A side whose stderr is a terminal."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=width, _environ={"TERM": "xterm"})
    return Live(side, peers=["airport"], epochs=2, console=console), written


def objects(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def wait_until(true: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "nothing happened for a minute"
        time.sleep(0.01)


def test_a_json_log_has_time_event_and_party_in_every_line() -> None:
    live, written = log(log_json=True)
    with live:
        live.notice("reading [bold]x[/bold]")
        live.event("listening", address="127.0.0.1:7443")
        live.watch("airport", "connected")
        live.watch("airport", "lost: not heard for 15 s")
        live.watch("bank", "refused: another job\x1b[2J\n{}")
        live.event("epoch", epoch=1, test_auc=math.nan)
        live.at_step(1200, 3290, 51_000)
    lines = objects(written)
    assert {(line["party"], line["time"][:2], line["time"][-6:]) for line in lines} == {("label", "20", "+00:00")}
    progress = lines.pop()
    assert [{key: line[key] for key in line if key not in ("time", "party")} for line in lines] == [
        {"event": "notice", "text": "reading [bold]x[/bold]"},
        {"event": "listening", "address": "127.0.0.1:7443"},
        {"event": "connected", "peer": "airport", "reason": "connected"},
        {"event": "lost", "peer": "airport", "reason": "lost: not heard for 15 s"},
        {"event": "refused", "peer": "bank", "reason": "refused: another job�[2J�{}"},
        {"event": "epoch", "epoch": 1, "test_auc": None},
    ]
    assert (progress["event"], progress["step"], progress["steps"], progress["epoch"]) == ("progress", 1200, 3290, 1)
    assert (progress["records"], progress["waiting_for"]) == (51_000, "airport, bank")
    assert "\x1b" not in written.getvalue()


def test_a_json_log_ends_with_the_error() -> None:
    live, written = log(log_json=True)
    with pytest.raises(ValueError, match="disk"), live:
        raise ValueError("the disk is full")
    assert (objects(written)[-1]["event"], objects(written)[-1]["reason"]) == ("error", "the disk is full")
    live, written = log(log_json=True)
    with pytest.raises(KeyboardInterrupt), live:
        raise KeyboardInterrupt
    assert objects(written)[-1]["reason"] == "interrupted"


def test_a_worker_that_is_not_the_first_tells_only_what_ends_it() -> None:
    live, written = log(log_json=True, only_errors=True, every=0.01)
    with pytest.raises(ValueError, match="broken"), live:
        live.notice("nobody reads this")
        live.event("epoch", epoch=1)
        live.at_step(3, 10, 30)
        wait_until(lambda: live.done[0] == 3)
        raise ValueError("broken")
    (told,) = objects(written)
    assert (told["event"], told["reason"]) == ("error", "broken")


def test_progress_comes_every_few_seconds_and_only_if_there_is_any() -> None:
    live, written = log(log_json=True, every=0.01)
    with live:
        live.event("listening", address="here")
        live.at_step(1, 10, 5)
        wait_until(lambda: '"step": 1,' in written.getvalue())
        live.at_step(2, 10, 10)
        wait_until(lambda: '"step": 2,' in written.getvalue())
        time.sleep(0.2)
    steps = [line["step"] for line in objects(written) if line["event"] == "progress"]
    assert steps.count(1) == steps.count(2) == 1


def test_a_plain_log_is_lines_without_control_characters() -> None:
    live, written = log()
    with live:
        live.progress(50, 100, "reading airport.csv")
        live.watch("airport", "connected")
        live.watch("bank", "waiting: \x1b]0;title\x07 for [red]you[/red]")
        live.event("resumed", step=1400)
        live.event("checkpoint", step=1600)
        live.event("epoch", epoch=1, test_auc=0.70125, validation_loss_se=0.01)
        live.event("wide part", text="fitting a linear model")
        live.at_step(1200, 3290, 51_000)
    lines = written.getvalue().splitlines()
    assert lines[:-1] == [
        "airport: connected",
        "bank: waiting: �]0;title� for [red]you[/red]",
        "resumed · step 1,400",
        "epoch 1 · test auc 0.7013",
        "fitting a linear model",
    ]
    assert lines[-1].startswith("step 1,200/3,290 · epoch 1 · ")
    assert lines[-1].endswith(" · waiting for bank (�]0;title� for [red]you[/red])")


def test_the_first_step_ends_what_was_prepared() -> None:
    live, _ = log()
    with live:
        live.watch("airport", "connected")
        live.progress(78, 78, "fitting the wide part")
        assert live.line() == "fitting the wide part 78/78"
        live.at_step(1, 10, 5)
        assert live.line().startswith("step 1/10 · ")


def test_the_same_news_is_told_once() -> None:
    live, written = log()
    with live:
        for _ in range(10):
            live.watch("airport", "waiting: nobody listens at label:7443")
    assert written.getvalue().count("airport: waiting: nobody listens") == 1


def test_a_log_that_nobody_reads_does_not_stop_the_training() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    file = os.fdopen(writing, "w")
    with Live("label", peers=["airport"], epochs=1, console=Console(file=file), every=0.01) as live:
        live.watch("airport", "connected")
        live.event("epoch", epoch=1)
        live.at_step(1, 2, 3)
        time.sleep(0.05)
    with pytest.raises(BrokenPipeError):
        file.close()


def test_the_live_line_and_what_happens_above_it() -> None:
    live, written = terminal()
    with live:
        live.progress(50, 100, "reading airport.csv")
        wait_until(lambda: "reading airport.csv 50/100" in written.getvalue())
        live.watch("airport", "connected")
        live.at_step(2000, 3290, 51_000)
        wait_until(lambda: "step 2,000/3,290 · epoch 2 · " in written.getvalue())
        live.watch("airport", "lost: not heard for 15 s \x1b[31m[red]")
        wait_until(lambda: " · waiting for airport (lost: not heard for 15 s �[31m[red])" in written.getvalue())
        live.event("checkpoint", step=2000)
    shown = written.getvalue()
    assert "airport: connected" in shown
    assert "airport: lost: not heard for 15 s �[31m[red]" in shown
    assert "\x1b[31m" not in shown, "the peer cannot colour this terminal"
    assert "checkpoint" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is back"


def test_the_live_line_stays_one_line_on_a_narrow_terminal() -> None:
    live, written = terminal(width=40)
    with live:
        live.watch("airport", "lost: " + "a very long reason " * 30)
        written.truncate(0)
        live.at_step(2000, 3290, 51_000)
        wait_until(lambda: "step 2,000/3,290" in written.getvalue())
    drawn = written.getvalue().split("step 2,000/3,290")[1].split("\x1b")[0]
    assert "\n" not in drawn.rstrip("\r\n") and "…" in drawn


def test_a_dumb_terminal_gets_plain_lines() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, _environ={"TERM": "dumb"})
    with Live("label", peers=["airport"], epochs=1, console=console) as live:
        live.watch("airport", "connected")
    assert written.getvalue().splitlines()[0] == "airport: connected"
    assert "\x1b" not in written.getvalue()


def test_the_feature_side_shows_no_fact_that_could_depend_on_labels() -> None:
    live, written = log(log_json=True)
    observer = Observers("airport", [("display", live)], pytest.fail)
    for metric in [*TestMetrics.__dataclass_fields__, "loss", "noisy_validation_loss", "positives", "anything_new"]:
        observer.event("epoch", epoch=1, **{metric: 0.5})
    observer.event("resumed", step=3)
    observer.event("restarted", peer="label")
    assert {key for line in objects(written) for key in line} == {"time", "party", "event", "epoch", "step", "peer"}
    assert not any(name.startswith("test") or "loss" in name for name in FEATURE_FACTS)


def test_an_estimate_is_shown_with_its_interval_or_not_at_all() -> None:
    facts = {"epoch": 2, "validation_loss": 0.5, "validation_auc": 0.7, "validation_auc_low": 0.65}
    shown = sentence("epoch", {**facts, "validation_auc_high": 0.75})
    assert shown == "epoch 2 · validation loss 0.5000 · validation auc 0.7000 (0.6500 to 0.7500)"
    unknown = dict.fromkeys(("validation_auc", "validation_auc_low", "validation_auc_high"), float("nan"))
    assert sentence("epoch", {**facts, **unknown}) == "epoch 2 · validation loss 0.5000"


def test_strangers_are_shown_and_not_kept() -> None:
    live, written = log()
    with live:
        for number in range(200):
            live.watch(f"stranger{number}" + "x" * 1000, "refused: not a party of this job")
    assert list(live.peers) == ["airport", "bank"]
    assert written.getvalue().count("refused") == 200
    assert max(map(len, written.getvalue().splitlines())) < 700


def test_news_from_many_threads_is_neither_lost_nor_mixed() -> None:
    live, written = log(log_json=True)

    def come_and_go(peer: str) -> None:
        for number in range(200):
            live.watch(peer, "connected")
            live.watch(peer, f"lost: time {number}")

    with live:
        threads = [threading.Thread(target=come_and_go, args=[peer]) for peer in ("airport", "bank") * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {peer.connections for peer in live.peers.values()} == {600}
    assert sum(line["event"] == "connected" for line in objects(written)) == 1200


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(live_module, "time", made)
    monkeypatch.setattr("tpsl.progress.time", made)
    return made


@pytest.fixture
def state(clock: Clock) -> LiveState:
    """A job of two epochs whose one peer is connected."""
    made = LiveState(["airport"], 2)
    made.preparing = None
    made.peer_is("airport", "connected", "connected")
    return made


def test_the_line_of_a_running_job(state: LiveState, clock: Clock) -> None:
    traffic = Traffic()
    state.gathered({"airport": traffic})
    clock.now += 2
    state.done = (1200, 2000, 102_000)
    traffic.bytes_sent, traffic.bytes_received = 20_000_000, 4_600_000
    assert state.line() == "step 1,200/2,000 · epoch 2 · 51,000 samples/s · 12.3 MB/s · about 5 s left"


def test_speed_counts_no_waiting_for_peers_to_come(state: LiveState, clock: Clock) -> None:
    state.line()
    clock.now += 600  # a log looks again when something has changed
    state.gathered({})
    clock.now += 5
    state.done = (100, 200, 1000)
    assert state.line() == "step 100/200 · epoch 1 · 200 samples/s · 0.0 MB/s · about 5 s left"


def test_speed_is_that_of_the_last_seconds_and_falls_to_nothing(state: LiveState, clock: Clock) -> None:
    for second in range(1, 101):
        clock.now += 1
        state.done = (second, 1000, second * 10 if second <= 50 else 500 + (second - 50) * 1000)
        speed = state.speed()
        if second == 50:
            assert speed[0] == pytest.approx(10)
    assert speed[0] == pytest.approx(1000)
    for _ in range(12):
        clock.now += 1
        speed = state.speed()
    assert speed[0] == 0


def test_the_bytes_of_all_peers_are_counted_once(state: LiveState) -> None:
    one, other = Traffic(100, 3), Traffic(7, 0)
    state.gathered({"airport": one, "bank": other})
    state.gathered({"airport": one, "bank": other})
    assert state.traffic == (107, 3)


@pytest.mark.parametrize(("done", "epoch"), [(0, 1), (1, 1), (10, 1), (11, 2), (20, 2)])
def test_the_epoch_is_that_of_the_latest_step(state: LiveState, done: int, epoch: int) -> None:
    state.done = (done, 20, 0)
    assert state.epoch == epoch


def test_a_short_wait_is_part_of_every_step_and_a_long_one_is_shown(state: LiveState, clock: Clock) -> None:
    state.waiting_for("airport")
    clock.now += 0.5
    assert state.missing() == {}
    clock.now += 6.5
    assert state.missing() == {"airport": "7 s"}
    assert state.line() == "waiting for airport (7 s)"
    state.waiting_for(None)
    clock.now += 60
    assert state.missing() == {}


def test_a_lost_peer_is_waited_for_with_the_reason_until_it_is_back(state: LiveState, clock: Clock) -> None:
    state.waiting_for("airport")
    clock.now += 20
    assert state.peer_is("airport", "lost", "lost: not heard for 15 s")
    assert not state.peer_is("airport", "lost", "lost: not heard for 15 s")
    assert state.missing() == {"airport": "lost: not heard for 15 s"}
    assert state.peer_is("airport", "waiting", "waiting: nobody listens")
    assert state.missing() == {"airport": "nobody listens"}
    assert state.peer_is("airport", "connected", "connected")
    state.waiting_for("airport")
    assert state.missing() == {}
    assert state.peers["airport"].connections == 2


def test_who_is_refused_in_a_peers_name_does_not_disconnect_the_peer(state: LiveState) -> None:
    assert state.peer_is("airport", "refused", "refused: another job")
    assert state.peers["airport"].connected
    assert state.missing() == {}


def test_nobody_is_waited_for_while_data_are_read() -> None:
    state = LiveState(["airport"], 1)
    state.preparing = "reading airport.csv 1/2"
    assert (state.missing(), state.line()) == ({}, "reading airport.csv 1/2")
    state.preparing = None
    assert state.line() == "waiting for airport (not here yet)"


def test_what_is_prepared_has_a_time_left_by_its_own_speed(state: LiveState, clock: Clock) -> None:
    state.progress(1, 2, "reading airport.csv")
    assert state.line() == "reading airport.csv 1/2"
    state.progress(0, 0, "fitting the wide part")
    assert state.line() == "fitting the wide part"
    clock.now += 30  # a library is loaded
    state.progress(1, 78, "fitting the wide part")
    clock.now += 0.5
    state.progress(2, 78, "fitting the wide part")
    clock.now += 9.5
    state.progress(6, 78, "fitting the wide part")
    assert state.line() == "fitting the wide part 6/78 · about 2 min left"
    clock.now += 10
    state.progress(78, 78, "fitting the wide part")
    assert state.line() == "fitting the wide part 78/78"
    state.progress(0, 0, "fitting the wide part")  # of another party
    assert state.line() == "fitting the wide part"
    state.waiting_for("airport")
    clock.now += 2
    assert state.line() == "waiting for airport (2 s)"


def test_a_peer_that_is_lost_is_waited_for_until_it_is_back(state: LiveState) -> None:
    state.preparing = None
    for name in list(state.peers):
        state.peer_is(name, "connected", "connected")
    assert state.missing() == {}
    state.peer_is("airport", "lost", "lost: cut")
    assert state.missing() == {"airport": "lost: cut"}
    state.peer_is("airport", "connected", "connected again")
    assert state.missing() == {}


@pytest.mark.parametrize(("may_end_early", "bound"), [(False, "about"), (True, "at most")])
def test_the_time_left_is_by_the_speed_of_the_last_seconds(clock: Clock, may_end_early: bool, bound: str) -> None:
    state = LiveState([], 2, may_end_early)
    state.preparing = None
    state.gathered({})
    for second in range(1, 31):
        clock.now += 1
        state.done = (100 + second if second <= 15 else 115 + (second - 15) * 10, 2000, 0)
        line = state.line()
    assert line.endswith(f" · {bound} 3 min left")  # 1,735 steps at 10 a second
    state.is_over = True  # early stopping leaves steps undone
    assert "left" not in state.line()
    state.is_over = False
    state.done = (2000, 2000, 0)
    assert "left" not in state.line()


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
    ours = Traffic()
    with running("label", "airport") as live:
        live.gathered({"airport": ours})
        ours.bytes_sent += 1000
        found = samples(scrape(live))
        assert found["tpsl_bytes_sent_total"] == ours.bytes_sent
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
