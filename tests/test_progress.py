"""What a long task tells."""

from __future__ import annotations

from tpsl.progress import said_once


def test_a_sentence_that_many_runs_have_to_say_is_said_once() -> None:
    heard: list[str] = []
    notice = said_once(heard.append)
    for text in ("one", "two", "one", "three", "two"):
        notice(text)
    assert heard == ["one", "two", "three"]
