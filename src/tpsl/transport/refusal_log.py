"""Says who was refused, without letting strangers fill the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_EVERY_SECONDS = 60.0
_MOST_NAMES = 256
_THE_REST = "other addresses"


@dataclass
class _Counted:
    since: float
    more: int = 0
    why: str = ""


class RefusalLog:
    """One line for each address and minute: the first refusal at once, then how many more there were.

    Memory is bounded: beyond some hundred addresses within a minute, the rest counts as one.
    """

    def __init__(self, watch: Callable[[str, str], None]) -> None:
        self._watch = watch
        self._counted: dict[str, _Counted] = {}
        self._lock = threading.Lock()

    def note(self, who: str, why: str) -> None:
        """Somebody was refused; from any thread."""
        with self._lock:
            if who not in self._counted and len(self._counted) >= _MOST_NAMES:
                who = _THE_REST
            counted = self._counted.get(who)
            if counted is None:
                self._counted[who] = _Counted(time.monotonic())
                self._watch(who, f"refused: {why}")
            else:
                counted.more += 1
                counted.why = why

    def tell(self, *, all_of_them: bool = False) -> None:
        """Say what has been counted for a minute, or at the end all that was counted."""
        now = time.monotonic()
        with self._lock:
            for who, counted in list(self._counted.items()):
                seconds = now - counted.since
                if seconds < _EVERY_SECONDS and not all_of_them:
                    continue
                if counted.more:
                    self._watch(who, f"refused: {counted.more} more within {seconds:.0f} s, the last: {counted.why}")
                    self._counted[who] = _Counted(now)
                else:
                    del self._counted[who]
