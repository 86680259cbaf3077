"""Bytes on their way from one socket to another, in one thread and without waiting.

What comes from a socket goes through a pipe in the kernel where the system can do that (Linux), so that the bytes of a
tensor are not copied once more; elsewhere, and for a connection that has yet to show who it is, through a buffer.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time

_CHUNK = 1 << 16
_PIPE_BYTES = 1 << 20
# How much may pass before others have their turn.
_CHUNKS_A_TURN = 8


class _Buffer:
    """Holds bytes between two sockets. `fill` and `empty` raise BlockingIOError where they would have to wait."""

    def __init__(self, content: bytes = b"") -> None:
        self._content = memoryview(content)

    @property
    def held(self) -> int:
        return len(self._content)

    def fill(self, source: socket.socket) -> int:
        """Take bytes; 0 at the end of the source."""
        self._content = memoryview(source.recv(_CHUNK))
        return self.held

    def empty(self, sink: socket.socket) -> None:
        """Pass some of them on."""
        self._content = self._content[sink.send(self._content) :]

    def close(self) -> None:
        self._content = memoryview(b"")


class _Pipe:
    """The same in the kernel."""

    def __init__(self) -> None:
        self._exit, self._entrance = os.pipe()
        self.held = 0
        if sys.platform == "linux":
            import fcntl

            with contextlib.suppress(OSError):  # a smaller one will do
                fcntl.fcntl(self._entrance, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def fill(self, source: socket.socket) -> int:
        moved = os.splice(source.fileno(), self._entrance, _PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE)
        self.held += moved
        return moved

    def empty(self, sink: socket.socket) -> None:
        self.held -= os.splice(self._exit, sink.fileno(), self.held, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE)

    def close(self) -> None:
        os.close(self._exit)
        os.close(self._entrance)


class _Lane:
    """One direction of a connection; neither socket blocks."""

    def __init__(self, source: socket.socket, sink: socket.socket, first: bytes = b"") -> None:
        self._source, self._sink = source, sink
        self._store: _Buffer | _Pipe = _Buffer(first)
        self._sink_gone = False
        self.ended = False
        self.fetched = len(first)
        """Bytes that came from the source."""

    @property
    def is_full(self) -> bool:
        return self._store.held > 0

    def widen(self) -> None:
        if hasattr(os, "splice") and isinstance(self._store, _Buffer) and not self.is_full:
            with contextlib.suppress(OSError):  # no more files: a buffer will do
                self._store = _Pipe()

    def move(self) -> None:
        """Move what can be moved now; `ended`: the source has ended, and all that came from it was passed on."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_CHUNKS_A_TURN):
                while self.is_full:
                    self._pass_on()
                if self.ended or not self._fetched():
                    self.ended = True
                    return

    def _fetched(self) -> bool:
        try:
            taken = self._store.fill(self._source)
        except BlockingIOError:
            raise
        except OSError:
            return False
        self.fetched += taken
        return taken > 0

    def _pass_on(self) -> None:
        try:
            if not self._sink_gone:
                self._store.empty(self._sink)
                return
        except BlockingIOError:
            raise
        except OSError:
            self._sink_gone = True
        # Nobody takes it any more; the source is read to its end all the same, so that it does not have to wait.
        self._store.close()
        self._store = _Buffer()

    def close(self) -> None:
        self._store.close()


class Relay:
    """Both directions between an outer and an inner socket, which it closes; each end is passed on as an end."""

    def __init__(self, outer: socket.socket, inner: socket.socket, first: bytes) -> None:
        """What `first` holds has come from outside already."""
        self._outer, self._inner = outer, inner
        self._inward, self._outward = _Lane(outer, inner, first), _Lane(inner, outer)
        self.ended_at: float | None = None
        """When the first of both sides ended."""
        self.ended_by_inner = False

    @property
    def is_over(self) -> bool:
        """Both sides have ended."""
        return self._inward.ended and self._outward.ended

    @property
    def received(self) -> int:
        """Bytes that came from outside."""
        return self._inward.fetched

    @property
    def sent(self) -> int:
        """Bytes that came from inside."""
        return self._outward.fetched

    def move(self, *, wide: bool) -> None:
        """Move what can be moved now; wide: through the kernel."""
        for lane, sink in ((self._inward, self._inner), (self._outward, self._outer)):
            if lane.ended:
                continue
            if wide:
                lane.widen()
            lane.move()
            if lane.ended:
                with contextlib.suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)
                if self.ended_at is None:
                    self.ended_at = time.monotonic()
                    self.ended_by_inner = lane is self._outward

    def wanted(self) -> dict[socket.socket, int]:
        """Return what to wait for at each of the sockets."""
        return {
            self._outer: _wanted(self._inward, self._outward),
            self._inner: _wanted(self._outward, self._inward),
        }

    def close(self) -> None:
        """Close both sockets; what is under way is lost."""
        self._inward.close()
        self._outward.close()
        self._outer.close()
        self._inner.close()


def _wanted(from_here: _Lane, to_here: _Lane) -> int:
    read = selectors.EVENT_READ if not from_here.is_full and not from_here.ended else 0
    return read | (selectors.EVENT_WRITE if to_here.is_full else 0)
