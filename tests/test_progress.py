"""What a long task tells."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tpsl.progress import Pace, said_once


def test_a_sentence_that_many_runs_have_to_say_is_said_once() -> None:
    heard: list[str] = []
    notice = said_once(heard.append)
    for text in ("one", "two", "one", "three", "two"):
        notice(text)
    assert heard == ["one", "two", "three"]


def test_a_pace_is_that_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pace = 100.0, Pace(10.0)
    monkeypatch.setattr("tpsl.progress.time", SimpleNamespace(monotonic=lambda: now))
    pace.add(0, 0)
    assert pace.seconds_left(50) is None
    for _ in range(100):
        now += 1
        pace.add(now - 100, 3 * (now - 100))
    assert pace.per_second == pytest.approx((1, 3))
    assert pace.seconds_left(150) == pytest.approx(50)
    assert pace.seconds_left(100) is None
    assert len(pace._points) < 20
    pace.add(7, 21)  # it went back
    assert pace.per_second == (0, 0) and pace.seconds_left(150) is None
