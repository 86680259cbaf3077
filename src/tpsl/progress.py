"""What a long task tells while it runs: how far it is, how fast, and sentences for people."""

from __future__ import annotations

import time
from collections import deque
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


class Pace:
    """How fast a task goes: the mean over the last seconds, of one or several amounts that grow."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._points: deque[tuple[float, tuple[float, ...]]] = deque()

    def add(self, *amounts: float) -> None:
        """Note what is done by now; it begins anew where the first amount has become less."""
        now = time.monotonic()
        if self._points and amounts[0] < self._points[-1][1][0]:
            self._points.clear()
        self._points.append((now, amounts))
        while len(self._points) > 2 and now - self._points[1][0] >= self._seconds:
            self._points.popleft()

    @property
    def per_second(self) -> tuple[float, ...]:
        """What was done in a second, of each amount."""
        (since, first), (now, last) = self._points[0], self._points[-1]
        return tuple((after - before) / max(now - since, 1e-3) for before, after in zip(first, last, strict=True))

    def seconds_left(self, total: float) -> float | None:
        """How long the rest of the first amount takes; None where that is not known, or nothing is left."""
        (since, _), (now, (done, *_)) = self._points[0], self._points[-1]
        speed = self.per_second[0]
        return (total - done) / speed if speed and done < total and now - since >= 1 else None
