"""A small HTTP/1.1 server for applications on this machine: JSON in, JSON out, everything bounded.

It listens at 127.0.0.1 only and answers only under the name of this machine. A request has a Content-Length, a body of
at most `MOST_BODY_BYTES`, and as content type JSON, which no page of another site can send unasked. A connection has
one request under way at a time; while that is answered, or its answer is not read, no more than one further request is
read. A client has ten seconds to send a request, from its first byte to its last, and a minute to read the answer or to
begin the next. When there are as many connections as may be, that of the client that is awaited longest gives way to a
new one, so that clients that send slowly, or nothing, keep no one out.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tpsl.progress import Notice
from tpsl.serving.browsers import is_asked_from_here
from tpsl.serving.refusals import Reason, Refusal
from tpsl.serving.running import PortTaken
from tpsl.serving.service_metrics import ServiceMetrics

ADDRESS = "127.0.0.1"
MOST_BODY_BYTES = 4 << 20
MOST_CONNECTIONS = 768
MOST_UNDER_WAY = 512
"""Requests that are being answered at once; one beyond them is refused with 503."""

_MOST_HEAD_BYTES = 16 << 10
_REQUEST_SECONDS, _IDLE_SECONDS = 10.0, 60.0
_SWEEP_SECONDS = 1.0
_LINGER_SECONDS = 0.25
_RETRY_AFTER_SECONDS = 1
_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """What a handler returns."""

    content: bytes
    kind: str = _JSON
    status: HTTPStatus = HTTPStatus.OK

    @classmethod
    def of(cls, content: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
        """Return content as JSON."""
        return cls(json.dumps(content).encode(), status=status)

    @classmethod
    def text(cls, content: bytes) -> Answer:
        """Return metrics."""
        return cls(content, _TEXT)


Handler = Callable[[bytes], Awaitable[Answer]]
"""Gets the body of a request; what it raises as a `Refusal` is the answer too."""


@dataclass(frozen=True)
class _Head:
    method: str
    path: str
    length: int
    keep_alive: bool


class HttpDoor:
    """Serves handlers by method and path, as `("POST", "/v1/score")`, from `open` until `close`."""

    def __init__(self, handlers: Mapping[tuple[str, str], Handler], metrics: ServiceMetrics, notice: Notice) -> None:
        self._handlers, self._metrics, self._notice = dict(handlers), metrics, notice
        self._connections: set[_Connection] = set()
        self._under_way = 0
        self.closing = False

    async def open(self, port: int) -> int:
        """Listen at a port, 0 for a free one, and return it."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Connection(self), ADDRESS, port, backlog=MOST_CONNECTIONS)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise PortTaken(f"cannot listen at {ADDRESS}:{port}: {reason}") from error
        self._sweeper = asyncio.create_task(self._close_idle_connections())
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self, grace: float) -> None:
        """Listen no more, answer what has been asked, for `grace` seconds at most, and close all connections."""
        self._server.close()
        self._sweeper.cancel()
        self.closing = True
        until = time.monotonic() + grace
        # A request may be on its way on a connection that looks idle.
        await asyncio.sleep(min(_LINGER_SECONDS, grace))
        for connection in list(self._connections):
            connection.close_if_idle()
        while self._connections and time.monotonic() < until:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def admit(self, connection: _Connection) -> bool:
        """Take a connection on; if there are too many, in place of the one whose client is awaited longest.

        False if all of them are being answered.
        """
        if len(self._connections) >= MOST_CONNECTIONS:
            self._metrics.refused(Reason.BUSY)
            awaited = [other for other in self._connections if other.awaited_since is not None]
            if not awaited:
                return False
            longest = min(awaited, key=lambda other: other.awaited_since or 0.0)
            self._connections.discard(longest)
            longest.abort()
        self._connections.add(connection)
        return True

    def forget(self, connection: _Connection) -> None:
        """Let go of a connection that has ended."""
        self._connections.discard(connection)

    async def answer(self, head: _Head, body: bytes) -> Answer:
        """Return the answer to a request, whatever happens."""
        started = time.perf_counter()
        try:
            handler = self._handler(head)
            if head.method == "GET":
                return await handler(body)
            return await self._counted(handler, body)
        except Refusal as refusal:
            return self.refused(refusal)
        except Exception as error:
            self._notice(f"{head.method} {head.path} failed: {type(error).__name__}: {error}")
            return Answer.of({"error": "the service has an error of its own"}, HTTPStatus.INTERNAL_SERVER_ERROR)
        finally:
            if (head.method, head.path) in self._handlers:
                self._metrics.seconds.labels(head.path).observe(time.perf_counter() - started)

    def refused(self, refusal: Refusal) -> Answer:
        """Return a refusal as an answer, and count it."""
        self._metrics.refused(refusal.reason)
        return Answer.of({"error": str(refusal)}, refusal.reason.http)

    def _handler(self, head: _Head) -> Handler:
        handler = self._handlers.get((head.method, head.path))
        if handler is None:
            known = ", ".join(f"{method} {path}" for method, path in self._handlers)
            raise Refusal(Reason.NOT_FOUND, f"there is no {head.method} {head.path[:100]} here, only {known}")
        return handler

    async def _counted(self, handler: Handler, body: bytes) -> Answer:
        if self._under_way >= MOST_UNDER_WAY:
            raise Refusal(Reason.BUSY, f"{self._under_way} requests are under way; ask again later")
        self._under_way += 1
        self._metrics.waiting.set(self._under_way)
        try:
            return await handler(body)
        finally:
            self._under_way -= 1
            self._metrics.waiting.set(self._under_way)

    async def _close_idle_connections(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for connection in list(self._connections):
                connection.close_if_late()


class _Connection(asyncio.Protocol):
    """One connection: reads a request, answers it, reads the next."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._received = bytearray()
        self._head: _Head | None = None
        self._answering: asyncio.Task[None] | None = None
        self._is_read = True
        """Whether the client reads what it is answered."""
        self._waits_since = time.monotonic()
        """Since when the client is awaited: to ask, to complete what it asks, or to read the answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._door.admit(self):
            transport.abort()

    def connection_lost(self, reason: Exception | None) -> None:
        self._door.forget(self)
        if self._answering is not None:
            self._answering.cancel()  # nobody waits for the answer

    def data_received(self, data: bytes) -> None:
        if not self._received and self._head is None:
            self._waits_since = time.monotonic()
        self._received += data
        if self._answering is None and self._is_read:
            self._read_next()
        elif len(self._received) > MOST_BODY_BYTES:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._is_read = False

    def resume_writing(self) -> None:
        self._is_read = True
        self._waits_since = time.monotonic()
        if self._answering is None:
            self._go_on()

    @property
    def awaited_since(self) -> float | None:
        """Since when the client is awaited; None while its request is answered."""
        return self._waits_since if self._answering is None else None

    def close_if_idle(self) -> None:
        """Close the connection if its client is awaited, once it has read what was written."""
        if self._answering is None and not self._transport.is_closing():
            self._transport.close()

    def close_if_late(self) -> None:
        """Close the connection if its client was awaited for too long; what it has not read a moment later is lost."""
        is_asking = self._is_read and (self._head is not None or bool(self._received))
        allowed = _REQUEST_SECONDS if is_asking else _IDLE_SECONDS
        if self._answering is not None or time.monotonic() - self._waits_since < allowed:
            return
        if self._transport.is_closing():
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        self._transport.abort()

    def _read_next(self) -> None:
        try:
            head = self._head = self._head or self._parse_head()
        except Refusal as refusal:
            self._write(self._door.refused(refusal), keep_alive=False)
            return
        if head is None or len(self._received) < head.length:
            return
        body = bytes(self._received[: head.length])
        del self._received[: head.length]
        self._head = None
        self._answering = asyncio.create_task(self._answer(head, body))

    async def _answer(self, head: _Head, body: bytes) -> None:
        answer = await self._door.answer(head, body)
        self._answering = None
        self._waits_since = time.monotonic()
        self._write(answer, keep_alive=head.keep_alive and not self._door.closing)
        if self._is_read:
            self._go_on()

    def _go_on(self) -> None:
        """Read what was received while nothing could be."""
        if self._received and not self._transport.is_closing():
            self._transport.resume_reading()
            self._read_next()

    def _write(self, answer: Answer, *, keep_alive: bool) -> None:
        if self._transport.is_closing():
            return
        later = f"Retry-After: {_RETRY_AFTER_SECONDS}\r\n" if answer.status == HTTPStatus.SERVICE_UNAVAILABLE else ""
        head = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
            f"Content-Type: {answer.kind}\r\nContent-Length: {len(answer.content)}\r\n"
            f"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n{later}"
            f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
        )
        self._transport.write(head.encode() + answer.content)
        if not keep_alive:
            self._transport.close()

    def _parse_head(self) -> _Head | None:
        """Take the head of a request off what was received; None if it is not there yet."""
        end = self._received.find(b"\r\n\r\n")
        if end > _MOST_HEAD_BYTES or (end < 0 and len(self._received) > _MOST_HEAD_BYTES):
            raise Refusal(Reason.TOO_LARGE, f"the headers of a request have more than {_MOST_HEAD_BYTES:,} bytes")
        if end < 0:
            return None
        lines = self._received[:end].decode("latin-1").split("\r\n")
        del self._received[: end + 4]
        return _checked_head(lines[0], _headers(lines[1:]))


def _headers(lines: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Refusal(Reason.MALFORMED, "a line of the headers is not of the form NAME: VALUE")
        found.setdefault(name.lower(), []).append(value.strip())
    return found


def _checked_head(line: str, headers: Mapping[str, list[str]]) -> _Head:
    method, *rest = line.split(" ")
    if len(rest) != 2 or rest[1] not in ("HTTP/1.1", "HTTP/1.0") or not rest[0].startswith("/"):
        raise Refusal(Reason.MALFORMED, "this is no request of HTTP/1.1")

    def only(name: str) -> str | None:
        values = headers.get(name, [])
        if len(values) > 1:
            raise Refusal(Reason.MALFORMED, f"the header {name} is there {len(values)} times")
        return values[0] if values else None

    if not is_asked_from_here(headers.get("host", []), only("sec-fetch-site"), only("sec-fetch-mode")):
        raise Refusal(Reason.FORBIDDEN, "this door answers only under the name of this machine")
    if "transfer-encoding" in headers:
        raise Refusal(Reason.MALFORMED, "send the body in one piece, with its Content-Length")
    length = only("content-length") or "0"
    if not (length.isascii() and length.isdigit()) or len(length) > 10:
        raise Refusal(Reason.MALFORMED, "the header content-length is not a number of bytes")
    if int(length) > MOST_BODY_BYTES:
        raise Refusal(Reason.TOO_LARGE, f"a request has at most {MOST_BODY_BYTES:,} bytes, not {int(length):,}")
    if method != "GET" and (only("content-type") or "").partition(";")[0].strip().lower() != _JSON:
        raise Refusal(Reason.MALFORMED, f"the content type of a {method} is {_JSON}")
    kept = (only("connection") or ("close" if rest[1] == "HTTP/1.0" else "keep-alive")).lower()
    return _Head(method, rest[0].partition("?")[0], int(length), kept == "keep-alive")
