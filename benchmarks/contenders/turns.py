"""A contender's side of taking turns: it trains when a benchmark says so, and says how long that took."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

PORT = "TPSL_RACE_PORT"
"""The environment variable with the port on which a benchmark waits for its contender."""


class Turns:
    """Holds a training loop until it is its turn; `settle` ends what still runs elsewhere before time is taken.

    `waited` are the seconds of the turn in which the contender waited for a peer, if it counts them.
    """

    def __init__(self, settle: Callable[[], object] = lambda: None) -> None:
        self._talk = socket.create_connection(("127.0.0.1", int(os.environ[PORT])))
        self._lines = self._talk.makefile(encoding="utf-8")
        self._settle = settle
        self._wanted, self._done, self._begun, self.waited = 0, 0, 0.0, 0.0

    def step_done(self, steps: int = 1) -> None:
        """Note steps that were done; if the turn is over, say how long it took and wait for the next one."""
        self._done += steps
        if self._done < self._wanted:
            return
        self._settle()
        if self._wanted:
            self._talk.sendall(f"{time.perf_counter() - self._begun} {self._done} {self.waited}\n".encode())
        line = self._lines.readline()
        if not line:
            os._exit(0)  # from whatever thread of whatever framework
        self._wanted, self._done, self._begun, self.waited = int(line), 0, time.perf_counter(), 0.0
