"""Counts the bytes of connections to this machine on their way: what a network would have carried."""

from __future__ import annotations

import select
import selectors
import socket
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

from tpsl.transport.relay import Relay

_LOOPBACK = "127.0.0.1"
_TO_END_SECONDS = 0.1


class CountingRelay(AbstractContextManager["CountingRelay"]):
    """A port for each port of this machine that it stands before; a context manager.

    Nobody can connect before `open`, so that who comes too early is told so, as without a relay.
    """

    def __init__(self, targets: Sequence[int]) -> None:
        self._targets = {_bound(): target for target in targets}
        self._relays: list[Relay] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pass_on, name="tpsl counting", daemon=True)

    @property
    def ports(self) -> list[int]:
        """The port before each of the targets, in their order."""
        return [int(listener.getsockname()[1]) for listener in self._targets]

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes from those who connected, and back to them."""
        return sum(relay.received for relay in self._relays), sum(relay.sent for relay in self._relays)

    def open(self) -> None:
        """Let connections in from now on."""
        for listener in self._targets:
            listener.listen()
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for listener in self._targets:
            listener.close()
        for relay in self._relays:
            relay.close()

    def _pass_on(self) -> None:
        while not self._ended.is_set():
            under_way = [relay for relay in self._relays if not relay.is_over]
            wanted = {sock: events for relay in under_way for sock, events in relay.wanted().items()}
            reading = [*self._targets, *(sock for sock, events in wanted.items() if events & selectors.EVENT_READ)]
            writing = [sock for sock, events in wanted.items() if events & selectors.EVENT_WRITE]
            ready, _, _ = select.select(reading, writing, [], _TO_END_SECONDS)
            for listener in self._targets.keys() & set(ready):
                self._relays.append(_connected(listener, self._targets[listener]))
            for relay in under_way:
                relay.move(wide=True)


def free_ports(count: int) -> list[int]:
    """Return neighbouring ports of this machine that are free."""
    for _ in range(100):
        with _bound() as first:
            begin = int(first.getsockname()[1])
        ports = list(range(begin, begin + count))
        if all(_is_free(port) for port in ports):
            return ports
    raise OSError(f"this machine has no {count} neighbouring ports that are free")


def _is_free(port: int) -> bool:
    try:
        _bound(port).close()
    except (OSError, OverflowError):
        return False
    return True


def _bound(port: int = 0) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((_LOOPBACK, port))
    return bound


def _connected(listener: socket.socket, target: int) -> Relay:
    outer, _ = listener.accept()
    inner = socket.create_connection((_LOOPBACK, target))
    for end in (outer, inner):
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Relay(outer, inner, b"")
