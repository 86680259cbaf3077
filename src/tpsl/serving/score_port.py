"""The label party's gRPC port: takes shares of feature parties over mutual TLS.

A caller is the feature party that its certificate names. What it gets back of scores the job says
(`prediction.returns`): where that is nothing, an empty answer at once, which depends on nothing but the caller's share.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from tpsl.net.certificates import CertificateError, peer_name
from tpsl.net.codec import as_sentence
from tpsl.net.network import bind, message_options, require_loopback, server_options
from tpsl.net.scoring_pb2 import ScoreAnswer, ScoreRequest
from tpsl.progress import Notice
from tpsl.serving.batching import Array
from tpsl.serving.gathering import Gathering
from tpsl.serving.refusals import PortTaken, Reason, Refusal, ServiceMetrics

SERVICE, METHOD = "tpsl.scoring.Scoring", "Score"
MOST_MESSAGE_BYTES = 1 << 20
MOST_CALLS_PER_PARTY = 512
"""As many requests as the HTTP server of a feature party answers at once."""
_STREAMS_PER_CONNECTION = 1024

_MOST_CALLS = 16 * MOST_CALLS_PER_PARTY

Context = grpc.aio.ServicerContext[Any, Any]


class ScorePort:
    """Serves feature parties from `open` until `close`. Without credentials names are taken on trust, on loopback."""

    def __init__(
        self,
        gathering: Gathering,
        credentials: grpc.ServerCredentials | None,
        metrics: ServiceMetrics,
        notice: Notice,
    ) -> None:
        self._gathering, self._credentials = gathering, credentials
        self._metrics, self._notice = metrics, notice
        self._calls: Counter[str] = Counter()
        options = [*message_options(MOST_MESSAGE_BYTES), *server_options(_STREAMS_PER_CONNECTION)]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MOST_CALLS)
        method: Any = grpc.unary_unary_rpc_method_handler(self._score)  # bytes in, bytes out
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))

    async def open(self, address: str) -> int:
        """Listen at an address and return the port; one that is taken is an error.

        One process at a time can: the parts of one request must come together.
        """
        if self._credentials is None:
            require_loopback(address)
        try:
            port = bind(self._server, address, self._credentials)
        except ValueError as error:
            raise PortTaken(str(error)) from error
        await self._server.start()
        return port

    async def close(self, grace: float) -> None:
        """Take no more calls, and end those under way after `grace` seconds at the latest."""
        await self._server.stop(grace)

    async def _score(self, data: bytes, context: Context) -> bytes:
        started, party = time.perf_counter(), None
        try:
            request = self._request(data, context)
            model = self._gathering.model(request.party, request.version)
            if self._calls[request.party] >= MOST_CALLS_PER_PARTY:
                raise Refusal(
                    Reason.BUSY, f"{MOST_CALLS_PER_PARTY:,} calls of {request.party} are under way; ask later"
                )
            party = request.party
            self._calls[party] += 1
            scores = self._gathering.contribute(model, request)
            if model.prediction.returns == "nothing":
                return ScoreAnswer().SerializeToString()
            found = model.prediction.returned(await self._waited(scores))
            return ScoreAnswer(scores=found.astype("<f4").tobytes()).SerializeToString()
        except Refusal as refusal:
            self._metrics.refused(refusal.reason)
            await context.abort(refusal.reason.grpc, as_sentence(str(refusal)))
        finally:
            if party is not None:
                self._calls[party] -= 1
            self._metrics.seconds.labels(METHOD).observe(time.perf_counter() - started)

    async def _waited(self, scores: asyncio.Future[Array]) -> Array:
        """Return scores; what is wrong with the label party's own part, or its program, it alone reads."""
        try:
            return await self._gathering.wait(scores)
        except Refusal as refusal:
            if refusal.reason != Reason.MALFORMED:
                raise
            raise Refusal(Reason.BAD_PEER, "the label party cannot use its own records of this key") from None
        except Exception as error:
            self._notice(f"{METHOD} failed: {type(error).__name__}: {error}")
            raise Refusal(Reason.BAD_PEER, "the label party has an error of its own") from None

    def _request(self, data: bytes, context: Context) -> ScoreRequest:
        """Return a call's content, if it is that of the party whose certificate the caller has."""
        try:
            request = ScoreRequest.FromString(data)
            caller = peer_name(context) if self._credentials is not None else request.party
        except DecodeError:
            raise Refusal(Reason.MALFORMED, "this is no request for scores") from None
        except CertificateError as error:
            raise Refusal(Reason.FORBIDDEN, str(error)) from None
        if caller != request.party:
            raise Refusal(Reason.FORBIDDEN, f"the certificate is not that of {request.party[:100]!r}")
        return request
