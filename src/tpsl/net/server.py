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
from collections.abc import Collection
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

import grpc
import torch

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


class LabelServer(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Listens for the feature parties of a job and brings what they ask to the desk. Use it as a context manager."""

    def __init__(
        self, address: str, desk: Desk, methods: Collection[str], *, certificates: Certificates | None
    ) -> None:
        """Listen at once. Without certificates only a loopback address is accepted, and names are taken on trust."""
        split_address(address)
        if certificates is None:
            require_loopback(address)
        terms = desk.terms
        self._desk, self._questions, self._certified = desk, frozenset(methods), certificates is not None
        self._open: Counter[str | None] = Counter()
        self._most_open = terms.limits.calls + _SPARE_CALLS
        self._poll = min(_LONGEST_POLL, terms.patience.silence / 3)
        self._longest = terms.patience.silence + largest_frame(terms.limits, terms.dtype) / SLOWEST
        """Seconds that a message, or an answer, may be under way."""
        credentials = certificates.server() if certificates is not None else None
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
        torch.get_num_threads()  # the thread computes answers: from here on with as many threads as were set elsewhere
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
        server.add_generic_rpc_handlers((self,))
        port = bind(server, address, credentials)
        await server.start()
        started.set_result(port)
        await self._ended.wait()
        await server.stop(SHORT_GRACE)

    # What follows runs in the thread of the server.

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return what answers a call; None if there is no such service."""
        service, _, method = handler_call_details.method.removeprefix("/").partition("/")
        if service != SERVICE:
            return None
        # To clients these are unary calls. Here the coroutine itself reads the message: so a call that is one too many
        # ends before its message has come.
        return grpc.stream_unary_rpc_method_handler(partial(self._serve_call, method))

    async def _serve_call(self, method: str, _: object, context: Context) -> bytes:
        """Answer one call, or end it with the status of an error; it counts as open until the answer has left."""
        loop = self._loop
        ticket: Ticket | None = None  # the question whose answer, or error, this call carries
        try:
            party = self._certificate(context)
            if self._open[party] >= self._most_open:
                raise Busy("this party has too many open calls")
            self._open[party] += 1
            task = asyncio.current_task(loop)
            assert task is not None
            timer = loop.call_later(self._longest, task.cancel)

            def ended(context: object) -> None:
                self._open[party] -= 1
                timer.cancel()
                if ticket is not None:
                    self._desk.delivered(ticket)

            context.add_done_callback(ended)  # type: ignore[arg-type]  # the stubs want a class
            data = await context.read()
            timer.cancel()
            if not isinstance(data, bytes):
                raise BadMessage(f"{party or 'a client'} sent a call without a message")
            if method == "Hello":
                answer = self._desk.hello(party, data)
            elif method == "Stop":
                self._desk.stopped_by(party, data)
                answer = _NOTHING
            elif method == "Agree" or method in self._questions:
                asked = (
                    self._desk.agree(party, data)
                    if method == "Agree"
                    else self._desk.ask(party, method, data, loop.call_soon)
                )
                if not asked.answer.done() and not await self._answered(party, asked):
                    answer = _PENDING
                else:
                    ticket = asked
                    answer = asked.answer.result()
            else:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {method} here")
            timer = loop.call_later(self._longest, task.cancel)
            return answer
        except (NetError, PeerRestarted) as error:
            code = error.code if isinstance(error, NetError) else "restarted"
            return await context.abort(status_of(error), as_details(str(error)), ((CODE, code),))

    async def _answered(self, party: str | None, ticket: Ticket) -> bool:
        """Wait a while for an answer; return whether there is one."""
        if ticket.waited is None:  # one for all calls that wait for it, so nothing grows with their number
            ticket.waited = asyncio.wrap_future(ticket.answer)
            ticket.waited.add_done_callback(lambda waited: waited.cancelled() or waited.exception())
        try:
            await asyncio.wait((ticket.waited,), timeout=self._poll)
        except asyncio.CancelledError:
            self._desk.left(party)
            raise
        return ticket.answer.done()

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
