"""Where feature parties connect: the label party's gRPC server, in one thread beside the one that trains.

The common name of its certificate identifies a feature party. Each call is bounded before memory is taken: the size of
a message, the calls of a connection, the open calls of a certificate, the time of a TLS handshake. A call that waits is
answered with `pending` after a while, so a client always knows that the label party is alive.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from typing import Any, Self

import grpc

from tpsl.net.codec import encode
from tpsl.net.credentials import CertificateError, Certificates, peer_name
from tpsl.net.desk import Desk, Ticket
from tpsl.net.failures import NetError, PeerRestarted, Refused
from tpsl.net.messages import Message
from tpsl.net.network import (
    CODE,
    SERVICE,
    SHORT_GRACE,
    bind,
    frame_options,
    require_loopback,
    server_options,
    split_address,
    status_of,
)

_SPARE_CALLS = 4
"""Calls of a certificate beside those with questions: a handshake, a stop, a call that is asked again."""
_LONGEST_POLL = 5.0
_PENDING = encode(Message(pending=True), "float32")

Context = grpc.aio.ServicerContext[bytes, bytes]


class LabelServer:
    """Listens for the feature parties of a job and brings what they ask to the desk. Use it as a context manager."""

    def __init__(
        self, address: str, desk: Desk, methods: Collection[str], *, certificates: Certificates | None
    ) -> None:
        """Listen at once. Without certificates only a loopback address is accepted, and names are taken on trust."""
        split_address(address)
        if certificates is None:
            require_loopback(address)
        self._desk, self._certified = desk, certificates is not None
        credentials = certificates.server() if certificates is not None else None
        self._open: Counter[str | None] = Counter()
        self._most_open = desk.terms.limits.calls + _SPARE_CALLS
        self._poll = min(_LONGEST_POLL, desk.terms.patience.silence / 3)
        self._methods = {"Hello": self._hello, "Agree": self._agree, "Stop": self._stopped}
        self._questions = frozenset(methods)
        self._loop = asyncio.new_event_loop()
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(address, credentials, started), name="tpsl server", daemon=True
        )
        self._thread.start()
        try:
            self.port = started.result()
        except BaseException:
            self._thread.join()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.stop()

    def stop(self, error: NetError | None = None) -> None:
        """Close the port when all answers are delivered, or soon; tell every party the reason, if there is one."""
        if self._thread.is_alive():
            self._desk.close(error, SHORT_GRACE)
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()

    def _serve(self, address: str, credentials: grpc.ServerCredentials | None, started: Future[int]) -> None:
        try:
            self._loop.run_until_complete(self._listen(address, credentials, started))
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            self._loop.close()

    async def _listen(self, address: str, credentials: grpc.ServerCredentials | None, started: Future[int]) -> None:
        self._ended = asyncio.Event()
        options = [*frame_options(self._desk.terms), *server_options(self._most_open)]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((_Handlers(self._answered),))
        port = bind(server, address, credentials)
        await server.start()
        started.set_result(port)
        await self._ended.wait()
        await server.stop(SHORT_GRACE)

    # What follows runs in the thread of the server.

    async def _answered(self, method: str, data: bytes, context: Context) -> bytes:
        """Answer one call, or end it with the status of an error."""
        party: str | None = None
        try:
            party = self._certificate(context)
            if self._open[party] >= self._most_open:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "this party has too many open calls")
            self._open[party] += 1
            try:
                if method in self._questions:
                    return await self._waited(self._desk.ask(party, method, data))
                if method not in self._methods:
                    await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {method} here")
                return await self._methods[method](party, data)
            except asyncio.CancelledError:
                self._desk.left(party)
                raise
            finally:
                self._open[party] -= 1
        except (NetError, PeerRestarted) as error:
            code = error.code if isinstance(error, NetError) else "restarted"
            await context.abort(status_of(error), str(error), ((CODE, code),))
            raise

    async def _hello(self, party: str | None, data: bytes) -> bytes:
        return self._desk.hello(party, data)

    async def _agree(self, party: str | None, data: bytes) -> bytes:
        return await self._waited(self._desk.agree(party, data))

    async def _stopped(self, party: str | None, data: bytes) -> bytes:
        self._desk.stopped_by(party, data)
        return encode(Message(), "float32")

    async def _waited(self, ticket: Ticket) -> bytes:
        """Return the answer, or after a while that there is none yet."""
        if ticket.answer.done():
            return ticket.answer.result()
        waiting = asyncio.wrap_future(ticket.answer)
        done, _ = await asyncio.wait((waiting,), timeout=self._poll)
        return waiting.result() if done else _PENDING

    def _certificate(self, context: Context) -> str | None:
        """Return the name in the certificate of a caller."""
        if not self._certified:
            return None
        try:
            name = peer_name(context)
        except CertificateError as error:
            raise self._desk.refusal("a client", Refused(str(error))) from None
        if name is None:
            raise self._desk.refusal("a client", Refused("the certificate does not name exactly one party"))
        return name


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Gives every method of the service to one coroutine."""

    def __init__(self, answered: Callable[[str, bytes, Context], Awaitable[bytes]]) -> None:
        self._answered = answered

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        service, _, method = handler_call_details.method.removeprefix("/").partition("/")
        if service != SERVICE:
            return None

        async def answer(data: bytes, context: Context) -> bytes:
            return await self._answered(method, data, context)

        return grpc.unary_unary_rpc_method_handler(answer)
