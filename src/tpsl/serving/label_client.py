"""A feature party's way to the label party's scoring service: one call for each request, repeated if it was lost."""

from __future__ import annotations

import asyncio
import time

import grpc
import numpy as np

from tpsl.serving.batching import Array
from tpsl.serving.refusals import Reason, Refusal
from tpsl.serving.score_port import CHECK, HEALTH, METHOD, MOST_MESSAGE_BYTES, SERVICE, message_options
from tpsl.transport.credentials import LABEL_SERVER_NAME
from tpsl.transport.frames import as_sentence
from tpsl.transport.network import Options, require_loopback
from tpsl.transport.scoring_pb2 import HealthCheckResponse, ScoreAnswer, ScoreRequest

_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 250
_PAUSE_SECONDS, _CHECK_SECONDS = 0.01, 2.0
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How a call ends whose connection breaks, or whose server stops."""
_OWN_DEADLINE = "Deadline Exceeded"  # what gRPC itself says at this end
_REASONS = {reason.grpc: reason for reason in Reason}


class LabelClient:
    """Calls the label party at an address, through its restarts. Without credentials only on loopback."""

    def __init__(self, address: str, party: str, credentials: grpc.ChannelCredentials | None, deadline: float) -> None:
        if credentials is None:
            require_loopback(address)
        options: Options = [
            *message_options(),
            ("grpc.initial_reconnect_backoff_ms", _FIRST_PAUSE_MS),
            ("grpc.max_reconnect_backoff_ms", _LONGEST_PAUSE_MS),
            ("grpc.ssl_target_name_override", LABEL_SERVER_NAME) if credentials else ("grpc.enable_http_proxy", 0),
        ]
        local = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
        self._address, self._party, self._deadline = address, party, deadline
        self._channel = grpc.aio.secure_channel(address, credentials or local, options=options)
        self._call = self._channel.unary_unary(f"/{SERVICE}/{METHOD}", None, None)
        self._checking = asyncio.create_task(self._check_health())
        self.is_healthy = False
        """Whether the label party's service has answered the last health check."""

    async def close(self) -> None:
        """End the connection."""
        self._checking.cancel()
        await self._channel.close(None)

    async def _check_health(self) -> None:
        """Ask how the label party is, again and again: its door closes connections on which nobody asks anything."""
        check = self._channel.unary_unary(f"/{HEALTH}/{CHECK}", None, None)
        while True:
            try:
                answer = HealthCheckResponse.FromString(await check(b"", timeout=_CHECK_SECONDS))
                self.is_healthy = answer.status == HealthCheckResponse.SERVING
            except (grpc.aio.AioRpcError, ValueError):
                self.is_healthy = False
            await asyncio.sleep(_CHECK_SECONDS)

    async def score(self, version: str, key: str, share: Array) -> Array | None:
        """Send a share; return the scores that come back, None where the job returns nothing.

        A call that was lost is repeated until the deadline: the same share under the same key is the same request.
        """
        request = ScoreRequest(
            party=self._party, version=version, key=key, records=len(share), share=share.astype("<f4").tobytes()
        ).SerializeToString()
        if len(request) > MOST_MESSAGE_BYTES:
            raise Refusal(
                Reason.TOO_LARGE,
                f"{len(share)} records make a message of {len(request):,} bytes, more than {MOST_MESSAGE_BYTES:,}",
            )
        until = time.monotonic() + self._deadline
        while True:
            try:
                answer = await self._call(request, timeout=until - time.monotonic(), wait_for_ready=True)
                return _checked_scores(answer, len(share))
            except grpc.aio.AioRpcError as error:
                if error.code() not in _LOST or time.monotonic() >= until:
                    raise self._refusal(error) from None
                await asyncio.sleep(_PAUSE_SECONDS)  # where the connection is down, the next call waits until it is up

    @property
    def _is_connected(self) -> bool:
        return self._channel.get_state() == grpc.ChannelConnectivity.READY

    def _refusal(self, error: grpc.aio.AioRpcError) -> Refusal:
        reason, sentence = _REASONS.get(error.code(), Reason.BAD_PEER), as_sentence(error.details() or "")
        if reason in (Reason.TOO_LATE, Reason.UNREACHABLE) and not self._is_connected:
            where = f"the label party at {self._address}"
            return Refusal(Reason.UNREACHABLE, f"{where} could not be reached within {self._deadline:g} s")
        if sentence in ("", _OWN_DEADLINE):
            sentence = f"nothing within {self._deadline:g} s" if sentence else error.code().name.lower()
        return Refusal(reason, f"the label party says: {sentence}")


def _checked_scores(answer: bytes, records: int) -> Array | None:
    """Return the scores of an answer, `[n]` or `[n, k]`, if they can be probabilities of so many records."""
    try:
        content = ScoreAnswer.FromString(answer).scores
    except ValueError:
        raise Refusal(Reason.BAD_PEER, "the label party sent an answer that is none") from None
    if not content:
        return None
    scores = np.frombuffer(content, dtype="<f4") if len(content) % 4 == 0 else np.empty(0, "<f4")
    if len(scores) == 0 or len(scores) % records or not ((scores >= 0) & (scores <= 1)).all():
        raise Refusal(Reason.BAD_PEER, f"the label party sent no scores of {records} records")
    return scores if len(scores) == records else scores.reshape(records, -1)
