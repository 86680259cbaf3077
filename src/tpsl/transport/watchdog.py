"""Ends streams that hang: a handshake that is not finished, a peer that is not heard, a stream that does not end.

Keep-alive does not notice a peer that is stopped but whose kernel still answers, and a writer may be stuck in a send to
that very peer; so the one who looks at the clock is a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tpsl.transport.link import Connection

_LOOKS_PER_SILENCE = 10
# How long a stream may take to end by itself once its connection is lost: its last words are under way.
_LAST_WORDS_SECONDS = 1.0


class Stream:
    """One stream under the watchdog's eyes; `connection` is set when the handshake is done."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel
        self.connection: Connection | None = None
        self.given_up_because: str | None = None
        self._began = time.monotonic()

    def look(self, now: float, silence: float) -> None:
        """Cancel the stream if it hangs; as often as it takes."""
        connection = self.connection
        if connection is None:
            if now - self._began > silence:
                self.given_up_because = f"the handshake was not finished within {silence:g} s"
                self.cancel()
        elif connection.lost_at is not None:
            if now - connection.lost_at > _LAST_WORDS_SECONDS:
                self.cancel()
        elif (since := connection.silent_since()) is not None and now - since > silence:
            connection.lose(f"not heard for {silence:g} s")
            self.cancel()


class Watchdog:
    """Looks at every stream several times per `silence` seconds, from a thread that ends with `close`."""

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._streams: set[Stream] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tpsl watchdog", daemon=True)
        self._thread.start()

    def watch(self, cancel: Callable[[], object]) -> Stream:
        """Look after a stream from now on; `cancel` ends it, from any thread."""
        stream = Stream(cancel)
        with self._lock:
            self._streams.add(stream)
        return stream

    def forget(self, stream: Stream) -> None:
        """The stream has ended."""
        with self._lock:
            self._streams.discard(stream)

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._closed.wait(min(self._silence / _LOOKS_PER_SILENCE, _LAST_WORDS_SECONDS)):
            now = time.monotonic()
            # If this very process was stopped, peers could not be heard: they get the time to be.
            if now - before < self._silence / 2:
                with self._lock:
                    streams = list(self._streams)
                for stream in streams:
                    stream.look(now, self._silence)
            before = now
