"""The HTTP door against clients that are odd, rude, slow or gone."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tpsl.serving import http_door
from tpsl.serving.http_door import MOST_BODY_BYTES, Answer, HttpDoor
from tpsl.serving.running import PortTaken
from tpsl.serving.service_metrics import ServiceMetrics

from .conftest import happens

POST = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}"


@dataclass
class Opened:
    door: HttpDoor
    port: int
    metrics: ServiceMetrics
    waiting: int = 0
    """Requests that are `slow`."""
    cancelled: list[bytes] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def talk(self, *parts: str, answers: int = 1) -> str:
        """Send parts one after the other, and return as many answers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for part in parts:
            writer.write(part.encode("latin-1"))
            await asyncio.sleep(0.01)
        answer = b""
        while answer.count(b"HTTP/1.1") < answers:
            piece = await asyncio.wait_for(reader.read(65536), 60)
            if not piece:
                raise ConnectionResetError("no answer")
            answer += piece
        writer.close()
        return answer.decode()


@asynccontextmanager
async def opened() -> AsyncIterator[Opened]:
    async def echo(body: bytes) -> Answer:
        if body == b"slow":
            found.waiting += 1
            try:
                await found.go_on.wait()
            except asyncio.CancelledError:
                found.cancelled.append(body)
                raise
            finally:
                found.waiting -= 1
        if body == b"defect":
            raise KeyError("a secret")
        return Answer(body)

    notices: list[str] = []
    metrics = ServiceMetrics()
    door = HttpDoor({("POST", "/echo"): echo, ("GET", "/health"): echo}, metrics, notices.append)
    found = Opened(door, await door.open(0), metrics, notices=notices)
    yield found
    found.go_on.set()
    await door.close(1.0)


def test_a_connection_serves_one_request_after_the_other() -> None:
    async def main() -> None:
        async with opened() as door:
            both = await door.talk(POST.format(3, "one"), POST.format(3, "two"), answers=2)
            assert both.count("HTTP/1.1 200 OK") == 2
            assert both.index("one") < both.index("two")
            # In pieces, at once, and by an old client that wants it closed.
            assert "three" in await door.talk(POST.format(5, "thr"), "ee")
            assert "Connection: close" in await door.talk("GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
            at_once = await door.talk(POST.format(1, "a") + POST.format(1, "b"), answers=2)
            assert at_once.index("\r\n\r\na") < at_once.index("\r\n\r\nb")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_text", "status", "sentence"),
    [
        ("nonsense\r\n\r\n", 400, "this is no request of HTTP/1.1"),
        ("GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", 400, "this is no request of HTTP/1.1"),
        ("GET http://evil/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "this is no request of HTTP/1.1"),
        ("GET /health HTTP/1.1\r\nHost localhost\r\n\r\n", 400, "not of the form NAME: VALUE"),
        ("GET /health HTTP/1.1\r\n\r\n", 403, "only under the name of this machine"),
        ("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "only under the name of this machine"),
        ("GET /health HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n", 403, "name of this machine"),
        ("GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "there is no GET /nothing here"),
        ("DELETE /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\r\n", 404, "no DELETE /echo"),
        (POST.format(1, "a").replace("application/json", "text/plain"), 400, "the content type of a POST is"),
        (POST.format("1\r\nContent-Length: 2", "ab"), 400, "content-length is there 2 times"),
        (POST.format("-1", ""), 400, "content-length is not a number"),
        (POST.format("9" * 11, ""), 400, "content-length is not a number"),
        (POST.format(MOST_BODY_BYTES + 1, ""), 413, "a request has at most 4,194,304 bytes"),
        (POST.format("1\r\nTransfer-Encoding: chunked", "a"), 400, "in one piece, with its Content-Length"),
        ("GET /health HTTP/1.1\r\nX: " + "x" * 20_000, 413, "the headers of a request have more than 16,384 bytes"),
        (POST.format(6, "defect"), 500, "the service has an error of its own"),
    ],
)
def test_what_is_no_proper_request_is_refused(request_text: str, status: int, sentence: str) -> None:
    async def main() -> None:
        async with opened() as door:
            answer = await door.talk(request_text)
            assert answer.startswith(f"HTTP/1.1 {status} "), answer
            assert sentence in answer
            assert "secret" not in answer
            assert "200 OK" in await door.talk(POST.format(2, "ok"))

    asyncio.run(main())


def test_a_client_that_leaves_ends_its_request() -> None:
    async def main() -> None:
        async with opened() as door:
            _, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.write(POST.format(4, "slow").encode())
            await happens(lambda: door.waiting == 1)
            writer.transport.abort()
            await happens(lambda: door.waiting == 0)
            assert door.cancelled == [b"slow"]

    asyncio.run(main())


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "MOST_CONNECTIONS", 2)

    async def main() -> None:
        async with opened() as door:
            held = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(2)]
            for _, writer in held:
                writer.write(POST.format(4, "slow").encode())
            await happens(lambda: door.waiting == 2)
            reader, _ = await asyncio.open_connection("127.0.0.1", door.port)
            with pytest.raises(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
                raise ConnectionResetError
            assert door.waiting == 2, "what is being answered gives way to nobody"
            held[0][1].close()
            await happens(lambda: door.door.connections == 1)
            assert "200 OK" in await door.talk(POST.format(2, "ok"))

    asyncio.run(main())


def test_the_client_that_is_awaited_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "MOST_CONNECTIONS", 3)

    async def main() -> None:
        async with opened() as door:
            answered, begun, idle = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(3)]
            answered[1].write(POST.format(4, "slow").encode())
            await happens(lambda: door.waiting == 1)
            begun[1].write(b"P")
            idle[1].write(POST.format(2, "ok").encode())
            assert b"200 OK" in await asyncio.wait_for(idle[0].readuntil(b"ok"), 60)
            newest = []
            for gone in (begun, idle):
                newest.append(await asyncio.open_connection("127.0.0.1", door.port))
                with pytest.raises(ConnectionResetError):
                    assert await asyncio.wait_for(gone[0].read(), 60) == b""
                    raise ConnectionResetError
                assert (door.door.connections, door.waiting) == (3, 1)

    asyncio.run(main())


@pytest.mark.parametrize("sends", [b"", b"POST /echo HTTP/1.1\r\nHost: loc"], ids=["nothing", "half a request"])
def test_hundreds_of_slow_clients_keep_nobody_out(sends: bytes) -> None:
    async def main() -> None:
        async with opened() as door:
            slow = []
            for _ in range(900):
                slow.append(await asyncio.open_connection("127.0.0.1", door.port))
                slow[-1][1].write(sends)
            await happens(lambda: door.door.connections == http_door.MOST_CONNECTIONS)
            for _ in range(5):
                before = time.monotonic()
                assert "200 OK" in await asyncio.wait_for(door.talk(POST.format(2, "ok")), 2)
                assert time.monotonic() - before < 2
            for _, writer in slow:
                writer.transport.abort()

    asyncio.run(main())


def test_answers_that_nobody_reads_do_not_pile_up() -> None:
    async def main() -> None:
        async with opened() as door:
            narrow = socket.socket()
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            narrow.connect(("127.0.0.1", door.port))
            reader, writer = await asyncio.open_connection(sock=narrow, limit=1 << 10)
            asked, size = 400, 1 << 16
            for _ in range(asked):
                writer.write(POST.format(size, "a" * size).encode())
            await asyncio.sleep(1.0)
            answered = [line for line in door.metrics.exposition().decode().splitlines() if "seconds_count" in line]
            assert float(answered[0].split()[-1]) < asked / 2, "further requests wait until the client reads"
            for _ in range(asked):
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
                assert await asyncio.wait_for(reader.readexactly(size), 60) == b"a" * size
            writer.close()

    asyncio.run(main())


def test_clients_that_dawdle_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that sends a request byte by byte nor one that does not read its answer holds a connection."""
    monkeypatch.setattr(http_door, "_REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(http_door, "_IDLE_SECONDS", 0.4)
    monkeypatch.setattr(http_door, "_SWEEP_SECONDS", 0.1)

    async def main() -> None:
        async with opened() as door:
            _, deaf = await asyncio.open_connection("127.0.0.1", door.port, limit=1 << 10)
            deaf.write(POST.format(MOST_BODY_BYTES, "a" * MOST_BODY_BYTES).encode() * 4)
            reader, slow = await asyncio.open_connection("127.0.0.1", door.port)
            letters = iter(POST.format(100, "a" * 100))
            while not (reader.at_eof() or reader.exception()):
                slow.write(next(letters).encode())
                await asyncio.sleep(0.02)
            await happens(lambda: door.door.connections == 0)

    asyncio.run(main())


def test_what_was_asked_is_answered_before_the_door_closes() -> None:
    async def main() -> None:
        async with opened() as door:
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.write(POST.format(4, "slow").encode())
            idle_reader, _ = await asyncio.open_connection("127.0.0.1", door.port)
            await happens(lambda: door.waiting == 1 and door.door.connections == 2)
            closing = asyncio.create_task(door.door.close(60.0))
            await happens(lambda: door.door.closing)
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", door.port)
            door.go_on.set()
            answer = (await asyncio.wait_for(reader.read(), 60)).decode()
            assert answer.startswith("HTTP/1.1 200 OK")
            assert "Connection: close" in answer
            assert await asyncio.wait_for(idle_reader.read(), 60) == b""
            await closing

    asyncio.run(main())


def test_a_port_that_is_taken_is_named() -> None:
    async def main() -> None:
        async with opened() as door:
            another = HttpDoor({}, ServiceMetrics(), door.notices.append)
            with pytest.raises(PortTaken, match=f"cannot listen at 127.0.0.1:{door.port}: address already in use"):
                await another.open(door.port)

    asyncio.run(main())
