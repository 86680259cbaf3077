"""A party's HTTP service for its own applications, by uvicorn: JSON in, JSON out, everything bounded.

At a loopback address it answers only under the name of this machine; at any other one it needs a bearer token or a TLS
certificate. What changes anything is a POST of JSON, which no page of another site can send unasked. A client has ten
seconds to send a request, from its first byte to its last, and a minute to begin the next one.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import h11
import uvicorn
from prometheus_client import make_asgi_app
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tpsl.net.network import split_address
from tpsl.progress import Notice
from tpsl.serving.browsers import is_asked_from_here
from tpsl.serving.refusals import PortTaken, Reason, Refusal, ServiceMetrics

MOST_BODY_BYTES = 4 << 20
MOST_CONNECTIONS = 768
MOST_UNDER_WAY = 512
"""Requests that are being answered at once; one beyond them is refused with 503."""
GRACE_SECONDS = 10
"""How long requests that are under way may take once a service is told to end."""
OPEN_PATHS = ("/healthz", "/ready")
"""What a kubelet asks, without a token."""

_MOST_HEAD_BYTES = 16 << 10
_REQUEST_SECONDS, _IDLE_SECONDS, _HANDSHAKE_SECONDS = 10.0, 60, 3.0
_LINGER_SECONDS = 1.0
_SHORTEST_TOKEN = 16
_JSON = "application/json"

Handler = Callable[[bytes], Awaitable[Any]]
"""Gets the body of a request and returns what is answered as JSON; what it raises as a `Refusal` is the answer too."""


class UnprotectedAddress(ValueError):
    """An address that other machines can reach, with neither a token nor a certificate."""

    code = "http-unprotected"


@dataclass(frozen=True)
class HttpAccess:
    """Where applications ask, and what they need to be answered."""

    address: str = "127.0.0.1:0"
    token: str | None = field(default=None, repr=False)
    certificate: Path | None = None
    """A PEM file with the certificate chain and the key of an HTTPS server."""

    @classmethod
    def of(cls, address: str, token: Path | None, certificate: Path | None) -> HttpAccess:
        """Read the token's file. An address that other machines can reach needs a token or a certificate."""
        if token is None and certificate is None and not _is_loopback(address):
            raise UnprotectedAddress(
                f"{address}: other machines can reach this address, so it needs a token (`http_token` in the local "
                "file) or a certificate (`http_certificate`)"
            )
        text = None if token is None else token.read_text(encoding="utf-8").strip()
        if text is not None and not (len(text) >= _SHORTEST_TOKEN and text.isascii() and text.isprintable()):
            raise ValueError(f"{token}: a token is a line of at least {_SHORTEST_TOKEN} printable ASCII characters")
        return cls(address, text, certificate)


def _is_loopback(address: str) -> bool:
    host = split_address(address)[0].strip("[]")
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


class HttpServer:
    """Serves handlers by method and path, as `("POST", "/v1/score")`, from `open` until `close`; and `/metrics`."""

    def __init__(
        self, handlers: Mapping[tuple[str, str], Handler], access: HttpAccess, metrics: ServiceMetrics, notice: Notice
    ) -> None:
        self._handlers, self._access, self._metrics, self._notice = handlers, access, metrics, notice
        self._exposition = make_asgi_app(metrics.registry)
        self._by_any_name = not _is_loopback(access.address)
        self._under_way = 0
        self._config = uvicorn.Config(
            self,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            headers=[("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")],
            h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
            ssl_certfile=access.certificate,
            timeout_keep_alive=_IDLE_SECONDS,
            limit_concurrency=MOST_CONNECTIONS,
        )
        self._config.load()
        self._state = ServerState()
        self._state.default_headers = list(self._config.encoded_headers)

    async def open(self) -> str:
        """Listen, and return the URL."""
        host, port = split_address(self._access.address)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: _Connection(self._config, self._state),
                host.strip("[]"),
                port,
                backlog=MOST_CONNECTIONS,
                ssl=self._config.ssl,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if self._config.ssl else None,
            )
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise PortTaken(f"cannot listen at {self._access.address}: {reason}") from error
        port = self._listener.sockets[0].getsockname()[1]
        return f"{'https' if self._access.certificate else 'http'}://{host}:{port}"

    async def close(self) -> None:
        """Listen no more, answer what has been asked, for `GRACE_SECONDS` at most, and close all connections."""
        self._listener.close()
        # A request may be on its way on a connection that looks idle: it is answered, and the connection is closed.
        self._state.default_headers.append((b"connection", b"close"))
        await asyncio.sleep(_LINGER_SECONDS)
        for connection in list(self._state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS - _LINGER_SECONDS):
                while self._state.connections:
                    await asyncio.sleep(0.01)
        for connection in list(self._state.connections):
            connection.transport.abort()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        started, connection, path = time.perf_counter(), scope["state"]["connection"], scope["path"]
        connection.answering = asyncio.current_task()
        methods = [method for method, other in self._handlers if other == path]
        answer: ASGIApp
        try:
            self._require_permission(path, Headers(scope=scope))
            if (scope["method"], path) == ("GET", "/metrics"):
                answer = self._exposition
            else:
                content = await self._content(Request(scope, receive), methods)
                answer = Response(json.dumps(content), media_type=_JSON)
        except asyncio.CancelledError:
            if connection.transport.is_closing():
                return
            raise
        except Exception as error:
            answer = self._refused(scope, error, methods)
        finally:
            connection.answering = None
            if methods:
                self._metrics.seconds.labels(path).observe(time.perf_counter() - started)
        await answer(scope, receive, send)

    def _require_permission(self, path: str, headers: Headers) -> None:
        # At another address than this machine's no page has the token, or a certificate of the name that it asks for.
        hosts = ["localhost"] if self._by_any_name else headers.getlist("host")
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if not is_asked_from_here(hosts, site, mode, or_by_number=True):
            raise Refusal(Reason.FORBIDDEN, "this service answers only under the name of this machine")
        if self._access.token is not None and path not in OPEN_PATHS:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), self._access.token.encode()):
                raise Refusal(Reason.UNAUTHORIZED, "send the token: Authorization: Bearer TOKEN")

    async def _content(self, request: Request, methods: Sequence[str]) -> Any:
        """Return what the handler of a request returns; those that compute are bounded in number and size."""
        handler = self._handlers.get((request.method, request.scope["path"]))
        if handler is None:
            known = ", ".join(f"{method} {path}" for method, path in self._handlers)
            sentence = f"there is no {request.method} {request.scope['path'][:100]} here, only {known}"
            raise Refusal(Reason.WRONG_METHOD if methods else Reason.NOT_FOUND, sentence)
        if request.method != "POST":
            return await handler(b"")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            raise Refusal(Reason.MALFORMED, f"the content type of a POST is {_JSON}")
        if self._under_way >= MOST_UNDER_WAY:
            raise Refusal(Reason.BUSY, f"{self._under_way} requests are under way; ask again later")
        body = bytearray()
        self._under_way += 1
        self._metrics.waiting.set(self._under_way)
        try:
            async for part in request.stream():
                body += part
                if len(body) > MOST_BODY_BYTES:
                    raise Refusal(Reason.TOO_LARGE, f"a request has at most {MOST_BODY_BYTES:,} bytes")
            return await handler(bytes(body))
        finally:
            self._under_way -= 1
            self._metrics.waiting.set(self._under_way)

    def _refused(self, scope: Scope, error: Exception, methods: Sequence[str]) -> Response:
        """Return the answer to a request that is refused, and count it."""
        if not isinstance(error, Refusal):
            self._notice(f"{scope['method']} {scope['path']} failed: {type(error).__name__}: {error}")
            error = Refusal(Reason.DEFECT, "the service has an error of its own")
        self._metrics.refused(error.reason)
        headers = {
            Reason.WRONG_METHOD: {"Allow": ", ".join(methods)},
            Reason.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
            Reason.BUSY: {"Retry-After": "1"},
            Reason.UNREACHABLE: {"Retry-After": "1"},
        }.get(error.reason, {})
        if scope["state"]["connection"].cycle.more_body:
            headers["Connection"] = "close"  # nobody reads the rest of the body
        content = json.dumps({"error": str(error), "code": error.reason.code})
        return Response(content, error.reason.http, headers, _JSON)


class _Connection(H11Protocol):
    """uvicorn's connection, which is closed if a request does not come whole, and whose requests end with it."""

    answering: asyncio.Task[Any] | None = None
    _late: asyncio.TimerHandle | None = None

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {"connection": self})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._have_request()
        if self.answering is not None:
            self.answering.cancel()  # nobody waits for the answer

    def data_received(self, data: bytes) -> None:
        self._await_request()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._have_request()

    def _await_request(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(_REQUEST_SECONDS, self.transport.abort)

    def _have_request(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None
