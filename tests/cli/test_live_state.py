"""Speeds, epochs and who is waited for, by a clock that the test turns."""

from __future__ import annotations

from typing import Any

import pytest

from tpsl.cli import live
from tpsl.cli.live import LiveState
from tpsl.net.messages import Traffic


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Counted:
    """As much of a channel as is looked at."""

    def __init__(self) -> None:
        self.traffic = Traffic()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(live, "time", made)
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
    channel: Any = Counted()
    state.gathered({"airport": channel})
    clock.now += 2
    state.done = (1200, 2000, 102_000)
    channel.traffic.bytes_sent, channel.traffic.bytes_received = 20_000_000, 4_600_000
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


def test_a_channel_is_counted_once_and_an_old_one_is_not_forgotten(state: LiveState) -> None:
    old: Any = Counted()
    new: Any = Counted()
    old.traffic.bytes_sent, new.traffic.bytes_sent = 100, 7
    state.gathered({"airport": old})
    state.gathered({"airport": old})
    state.gathered({"airport": new})
    assert state.traffic == (107, 0)


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


def test_a_peer_that_has_said_goodbye_is_not_waited_for(state: LiveState) -> None:
    state.preparing = None
    for name in list(state.peers):
        state.peer_is(name, "connected", "connected")
    assert state.peer_is("airport", "left", "left: it has said goodbye")
    assert state.missing() == {}
    state.peer_is("airport", "connected", "connected again")
    state.peer_is("airport", "lost", "lost: cut")
    assert state.missing() == {"airport": "lost: cut"}


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
