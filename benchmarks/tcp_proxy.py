"""A TCP proxy on loopback that breaks the network on command; tests and benchmarks start it as a program.

    python benchmarks/tcp_proxy.py --listen 0 --to HOST:PORT

The first line on stdout is the port it listens on. It reads commands on stdin, one a line, carries each out before it
reads the next, and ends when stdin does, so it never outlives the program that started it:

    cut       reset every connection; new ones are accepted
    cut one   reset one connection
    freeze    half-open network: no connection is closed, what arrives is swallowed, nothing reaches the other side
              (neither data nor an end); connections made while frozen go nowhere either
    refuse    refuse new connections; those that exist go on
    thaw      undo freeze and refuse for new connections; a connection that was frozen stays dead
    delay MS  deliver everything (an end too) so many milliseconds later, each way; order is kept, bandwidth not limited
    count     print one line of JSON: bytes taken `forward` (from who connects) and `back` to be passed on,
              connections `accepted` so far, and how many are `alive` (carried, not frozen)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import struct
import sys
import threading
from collections.abc import Awaitable, Iterable
from typing import Literal

CHUNK = 1 << 18
# A sender is held back once so much is on its way. Without delay little, so that a receiver that does not read is felt
# at the other end; with delay as much more as a fast network carries in that time, so that it is delay alone.
ROOM = 1 << 20
ROOM_PER_SECOND_OF_DELAY = 1 << 31


class Proxy:
    def __init__(self, port: int, target: tuple[str, int]) -> None:
        self.target = target
        self.delay = 0.0
        self.mode: Literal["forward", "freeze", "refuse"] = "forward"
        self.bytes = {"forward": 0, "back": 0}
        self.accepted = 0
        self.connections: set[Connection] = set()
        # Bound for good but never listening: keeps the port ours while nothing listens on it.
        self._holder = _bound(port)
        self.port: int = self._holder.getsockname()[1]
        self._listening: asyncio.Task[None] | None = None
        self._listen()

    async def command(self, line: str) -> None:
        match line.split():
            case ["cut"]:
                await self._each(connection.reset() for connection in self.connections)
            case ["cut", "one"]:
                await self._each(connection.reset() for connection in list(self.connections)[:1])
            case ["freeze"]:
                self.mode = "freeze"
                self._listen()
                await self._each(connection.freeze() for connection in self.connections)
            case ["refuse"]:
                self.mode = "refuse"
                await self._stop_listening()
            case ["thaw"]:
                self.mode = "forward"
                self._listen()
            case ["delay", milliseconds] if milliseconds.replace(".", "", 1).isdecimal():
                self.delay = float(milliseconds) / 1000
            case ["count"]:
                alive = sum(connection.alive for connection in self.connections)
                print(json.dumps({**self.bytes, "accepted": self.accepted, "alive": alive}), flush=True)
            case _:
                raise ValueError(f"tcp_proxy: there is no command {line.strip()!r}")

    @staticmethod
    async def _each(actions: Iterable[Awaitable[None]]) -> None:
        await asyncio.gather(*actions)

    def _listen(self) -> None:
        if self._listening is None:
            listener = _bound(self.port)
            listener.listen(128)
            self._listening = asyncio.create_task(self._accept(listener))

    async def _stop_listening(self) -> None:
        if self._listening is not None:
            await _cancelled([self._listening])
            self._listening = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                near, _ = await loop.sock_accept(listener)
                self.accepted += 1
                self.connections.add(Connection(self, near))


class Connection:
    """One connection through the proxy: carried, then perhaps frozen, then gone."""

    def __init__(self, proxy: Proxy, near: socket.socket) -> None:
        self.proxy = proxy
        self.near, self.far = near, socket.socket()
        self.alive = proxy.mode != "freeze"
        for end in (self.near, self.far):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tasks = [asyncio.create_task(self._carry())] if self.alive else self._swallowing()

    async def reset(self) -> None:
        """Drop what is under way and reset both ends."""
        await _cancelled(self._tasks)
        self._close(abruptly=True)

    async def freeze(self) -> None:
        """Drop what is under way; from now on each end talks to nobody, and neither is told."""
        if self.alive:
            self.alive = False
            await _cancelled(self._tasks)
            self._tasks = self._swallowing()

    async def _carry(self) -> None:
        abruptly = False
        try:
            await asyncio.get_running_loop().sock_connect(self.far, self.proxy.target)
            async with asyncio.TaskGroup() as ways:
                for way in (Way(self, "forward", self.near, self.far), Way(self, "back", self.far, self.near)):
                    ways.create_task(way.read())
                    ways.create_task(way.write())
        except* OSError:
            abruptly = True
        self._close(abruptly=abruptly)

    def _swallowing(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(_swallow(end)) for end in (self.near, self.far)]

    def _close(self, *, abruptly: bool) -> None:
        self.alive = False
        for end in (self.near, self.far):
            if abruptly and end.fileno() >= 0:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
        self.proxy.connections.discard(self)


class Way:
    """One direction of a connection. Reading runs ahead of writing by the delay."""

    def __init__(
        self, connection: Connection, name: Literal["forward", "back"], source: socket.socket, sink: socket.socket
    ) -> None:
        self.proxy, self.name, self.source, self.sink = connection.proxy, name, source, sink
        self._under_way: asyncio.Queue[tuple[float, bytes | OSError]] = asyncio.Queue()
        self._bytes_under_way = 0
        self._some_delivered = asyncio.Event()

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        chunk: bytes | OSError = b"-"
        while chunk and not isinstance(chunk, OSError):
            while self._bytes_under_way > ROOM + self.proxy.delay * ROOM_PER_SECOND_OF_DELAY:
                self._some_delivered.clear()
                await self._some_delivered.wait()
            try:
                chunk = await loop.sock_recv(self.source, CHUNK)
                self.proxy.bytes[self.name] += len(chunk)
                self._bytes_under_way += len(chunk)
            except OSError as failure:
                chunk = failure  # A reset arrives as late as what was sent before it.
            self._under_way.put_nowait((loop.time() + self.proxy.delay, chunk))

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, chunk = await self._under_way.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            if isinstance(chunk, OSError):
                raise chunk
            if not chunk:
                self.sink.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(self.sink, chunk)
            self._bytes_under_way -= len(chunk)
            self._some_delivered.set()


async def _swallow(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(end, CHUNK):
            pass
    end.close()


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel and wait until it has happened: a socket may be read again only when nobody waits on it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.setblocking(False)
    return bound


async def _serve(port: int, target: tuple[str, int]) -> None:
    loop = asyncio.get_running_loop()
    proxy = Proxy(port, target)
    print(proxy.port, flush=True)
    ended: asyncio.Future[Exception | None] = loop.create_future()

    def obey() -> None:
        failure: Exception | None = None
        try:
            for line in sys.stdin:
                asyncio.run_coroutine_threadsafe(proxy.command(line), loop).result()
        except Exception as error:
            failure = error
        loop.call_soon_threadsafe(ended.set_result, failure)

    threading.Thread(target=obey, daemon=True).start()
    failure = await ended
    if failure is not None:
        raise failure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", type=int, default=0, metavar="PORT", help="0: any free port")
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    options = parser.parse_args()
    host, _, port = options.to.rpartition(":")
    if not host or not port.isdecimal():
        parser.error(f"--to {options.to} is not HOST:PORT")
    try:
        asyncio.run(_serve(options.listen, (socket.gethostbyname(host), int(port))))
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
