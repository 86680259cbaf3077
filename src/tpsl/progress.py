"""What a long task tells while it runs: how far it is, and sentences for people."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called with (done, total or 0 where it is unknown, what is being done)."""

Notice = Callable[[str], None]
"""Called with a sentence."""


def no_progress(done: int, total: int, note: str) -> None:
    """Show nothing."""


def no_notice(text: str) -> None:
    """Say nothing."""


def said_once(notice: Notice) -> Notice:
    """Return a notice that says each sentence once, however many runs have it to say."""
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            notice(text)

    return say
