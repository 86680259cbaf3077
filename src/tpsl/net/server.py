"""Where feature parties connect: the label party's gRPC server, in one thread beside the one that trains.

The common name of its certificate identifies a feature party. Each call is bounded before memory is taken: the size of
a message, the calls of a connection, the open calls of a certificate on all its connections, the time that a message
and an answer may take, the time of a TLS handshake, the age of a connection. A call that waits is answered with
`pending` after a while, so a client always knows that the label party is alive.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from typing import Any, Self

import grpc

from tpsl.net.certificates import CertificateError, Certificates, peer_name
from tpsl.net.codec import encode, largest_frame
from tpsl.net.desk import Desk, Ticket
from tpsl.net.failures import BadMessage, Busy, NetError, PeerRestarted, Refused
from tpsl.net.messages import Message
from tpsl.net.network import (
    CODE,
    SERVICE,
    SHORT_GRACE,
    SLOWEST,
    as_details,
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
_NOTHING, _PENDING = encode(Message(), "float32"), encode(Message(pending=True), "float32")

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
        terms = desk.terms
        self._poll = min(_LONGEST_POLL, terms.patience.silence / 3)
        self._longest = terms.patience.silence + largest_frame(terms.limits, terms.dtype) / SLOWEST
        """Seconds that a message, or an answer, may be under way."""
        self._questions = frozenset(methods)
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
        with asyncio.Runner() as runner:  # whatever is left of calls ends with it
            self._loop = runner.get_loop()
            try:
                runner.run(self._listen(address, credentials, started))
            except Exception as error:
                if started.done():
                    raise
                started.set_exception(error)

    async def _listen(self, address: str, credentials: grpc.ServerCredentials | None, started: Future[int]) -> None:
        self._ended = asyncio.Event()
        options = [*frame_options(self._desk.terms), *server_options(self._most_open, 2 * self._longest + self._poll)]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((_Handlers(self._serve_call),))
        port = bind(server, address, credentials)
        await server.start()
        started.set_result(port)
        await self._ended.wait()
        await server.stop(SHORT_GRACE)

    # What follows runs in the thread of the server.

    async def _serve_call(self, method: str, context: Context) -> bytes:
        """Answer one call, or end it with the status of an error.

        It is counted until the answer has left. The message, and then the answer, may take so long and no longer.
        """
        try:
            party = self._certificate(context)
            if self._open[party] >= self._most_open:
                raise Busy("this party has too many open calls")
            self._open[party] += 1
            call = _Call(asyncio.current_task())
            context.add_done_callback(lambda _: self._end(party, call))
            call.must_end_within(self._longest)
            data = await context.read()
            call.may_take_its_time()
            answer = await self._answer(party, method, data, call, context)
            call.must_end_within(self._longest)
            return answer
        except (NetError, PeerRestarted) as error:
            code = error.code if isinstance(error, NetError) else "restarted"
            return await context.abort(status_of(error), as_details(str(error)), ((CODE, code),))

    def _end(self, party: str | None, call: _Call) -> None:
        self._open[party] -= 1
        call.may_take_its_time()
        if call.ticket is not None:
            self._desk.delivered(call.ticket)

    async def _answer(self, party: str | None, method: str, data: object, call: _Call, context: Context) -> bytes:
        if not isinstance(data, bytes):
            raise BadMessage(f"{party or 'a client'} sent a call without a message")
        desk = self._desk
        if method == "Hello":
            return desk.hello(party, data)
        if method == "Stop":
            desk.stopped_by(party, data)
            return _NOTHING
        if method != "Agree" and method not in self._questions:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {method} here")
        soon = asyncio.get_running_loop().call_soon
        ticket = desk.agree(party, data) if method == "Agree" else desk.ask(party, method, data, soon)
        try:
            answer = await self._waited(ticket)
        except asyncio.CancelledError:
            desk.left(party)
            raise
        except (NetError, PeerRestarted):
            call.ticket = ticket  # delivered as the status of this call
            raise
        call.ticket = ticket if answer is not _PENDING else None
        return answer

    async def _waited(self, ticket: Ticket) -> bytes:
        """Return the answer, or after a while that there is none yet."""
        if not ticket.answer.done():
            if ticket.waited is None:  # one for all calls that wait for it, so nothing grows with their number
                ticket.waited = asyncio.wrap_future(ticket.answer)
                ticket.waited.add_done_callback(lambda waited: waited.cancelled() or waited.exception())
            await asyncio.wait((ticket.waited,), timeout=self._poll)
        return ticket.answer.result() if ticket.answer.done() else _PENDING

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


class _Call:
    """A call, from the moment that it is counted: the task that serves it, and whose answer it carries."""

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self._task, self._timer = task, None
        self._timer: asyncio.TimerHandle | None
        self.ticket: Ticket | None = None

    def must_end_within(self, seconds: float) -> None:
        """End the call if what it waits for takes longer."""
        if self._task is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._task.cancel)

    def may_take_its_time(self) -> None:
        """Wait without a limit."""
        if self._timer is not None:
            self._timer.cancel()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Gives every method of the service to one coroutine."""

    def __init__(self, serve_call: Callable[[str, Context], Awaitable[bytes]]) -> None:
        self._serve_call = serve_call

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        service, _, method = handler_call_details.method.removeprefix("/").partition("/")
        if service != SERVICE:
            return None

        async def serve(_: object, context: Context) -> bytes:
            return await self._serve_call(method, context)

        # To clients these are unary calls. Here the coroutine itself reads the message: so a call that is one too many
        # ends before its message has come.
        return grpc.stream_unary_rpc_method_handler(serve)
