"""What a side shows while it runs: on a terminal, in a plain log, as JSON lines; and what the feature side may not."""

from __future__ import annotations

import io
import json
import math
import os
import threading
import time
from typing import Any, Literal

import pytest
from rich.console import Console

from tpsl.cli.live import Live, sentence
from tpsl.training.evaluation import TestMetrics
from tpsl.training.observer import FEATURE_FACTS, Observers


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


def test_it_is_an_observer() -> None:
    live, written = log(log_json=True)
    live.gathered({})
    live.at_step(1, 2, 3)
    live.waiting_for("airport")
    live.waiting_for(None)
    live.event("checkpoint", step=1)
    assert [(line["event"], line["step"]) for line in objects(written) if line["event"] == "checkpoint"] == [
        ("checkpoint", 1)
    ]


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
