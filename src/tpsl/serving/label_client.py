"""A feature party's way to the label party's scoring service, through its restarts.

Shares that were computed together go together: a call costs more than the shares in it. Only where outcomes wait for
other parties each share has its own call, so that none holds up another. gRPC makes a call again that was lost: the
same share under the same key is the same request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from tpsl.net.certificates import LABEL_SERVER_NAME
from tpsl.net.codec import as_sentence
from tpsl.net.network import Options, message_options, require_loopback
from tpsl.net.scoring_pb2 import HealthCheckResponse, Outcome, ScoreAnswer, ScoreRequest, Share
from tpsl.serving.batching import Array
from tpsl.serving.refusals import Reason, Refusal
from tpsl.serving.score_port import CHECK, HEALTH, METHOD, MOST_MESSAGE_BYTES, MOST_SHARES, SERVICE

_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 250
_CHECK_SECONDS = 0.5
_TAG_BYTES = 8
"""Before each share."""
_MOST_BYTES = MOST_MESSAGE_BYTES - 1024
"""Of the shares of a call; the rest is for names of the party and of the version."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": SERVICE}],
            "waitForReady": True,  # where the connection is down, the next attempt waits until it is up
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": f"{_FIRST_PAUSE_MS / 1000}s",
                "maxBackoff": f"{_LONGEST_PAUSE_MS / 1000}s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],  # the connection broke, or the server stops
            },
        }
    ]
}


@dataclass(frozen=True)
class _Sending:
    version: str
    share: Share
    scores: asyncio.Future[Array | None]


class LabelClient:
    """Calls the label party at an address. Without credentials only on loopback."""

    def __init__(self, address: str, party: str, credentials: grpc.ChannelCredentials | None, deadline: float) -> None:
        if credentials is None:
            require_loopback(address)
        options: Options = [
            *(option for option in message_options(MOST_MESSAGE_BYTES) if option[0] != "grpc.enable_retries"),
            ("grpc.service_config", json.dumps(_RETRIES)),
            ("grpc.per_rpc_retry_buffer_size", 2 * MOST_MESSAGE_BYTES),
            ("grpc.initial_reconnect_backoff_ms", _FIRST_PAUSE_MS),
            ("grpc.max_reconnect_backoff_ms", _LONGEST_PAUSE_MS),
            ("grpc.ssl_target_name_override", LABEL_SERVER_NAME) if credentials else ("grpc.enable_http_proxy", 0),
        ]
        local = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
        self._address, self._party, self._deadline = address, party, deadline
        self._channel = grpc.aio.secure_channel(address, credentials or local, options=options)
        self._call = self._channel.unary_unary(f"/{SERVICE}/{METHOD}", None, None)
        self._check = self._channel.unary_unary(f"/{HEALTH}/{CHECK}", None, None)
        self._waiting: list[_Sending] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._each_alone = True  # until the label party says that nothing waits for other parties

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close(None)

    async def is_healthy(self) -> bool:
        """Ask whether the label party's service is well; a moment is long enough for an answer."""
        try:
            answer = HealthCheckResponse.FromString(await self._check(b"", timeout=_CHECK_SECONDS))
        except (grpc.aio.AioRpcError, DecodeError):
            return False
        return answer.status == HealthCheckResponse.SERVING

    async def score(self, version: str, key: str, share: Array) -> Array | None:
        """Send a share; return the scores that come back, None where the job returns nothing."""
        scores: asyncio.Future[Array | None] = asyncio.get_running_loop().create_future()
        part = Share(key=key, records=len(share), numbers=share.astype("<f4").tobytes())
        if (size := part.ByteSize() + _TAG_BYTES) > _MOST_BYTES:
            raise Refusal(
                Reason.TOO_LARGE,
                f"{len(share)} records make a message of {size:,} bytes, more than {_MOST_BYTES:,}",
            )
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self._waiting.append(_Sending(version, part, scores))
        return await scores

    def _send(self) -> None:
        """Make calls of what came at the same moment, each with shares of one version that fit into a message."""
        waiting, self._waiting = [sending for sending in self._waiting if not sending.scores.done()], []
        calls: list[list[_Sending]] = []
        room = 0
        for sending in waiting:
            size, last = sending.share.ByteSize() + _TAG_BYTES, calls[-1] if calls else []
            is_full = self._each_alone or len(last) == MOST_SHARES or size > room
            if not last or is_full or last[0].version != sending.version:
                calls.append([])
                room = _MOST_BYTES
            calls[-1].append(sending)
            room -= size
        for together in calls:
            self._calls.add(call := asyncio.create_task(self._answered(together)))
            call.add_done_callback(self._calls.discard)

    async def _answered(self, together: list[_Sending]) -> None:
        """Make one call and hand out its outcomes."""
        found: Sequence[Array | Exception | None]
        try:
            outcomes = await self._outcomes(together)
            found = [_checked(outcome, each.share.records) for each, outcome in zip(together, outcomes, strict=True)]
        except Exception as error:  # whatever it is, nobody may wait for ever
            found = [error] * len(together)
        for sending, scores in zip(together, found, strict=True):
            if sending.scores.done():
                continue  # the client has gone away
            if isinstance(scores, Exception):
                sending.scores.set_exception(scores)
            else:
                sending.scores.set_result(scores)

    async def _outcomes(self, together: list[_Sending]) -> Sequence[Outcome]:
        shares = [sending.share for sending in together]
        request = ScoreRequest(party=self._party, version=together[0].version, shares=shares).SerializeToString()
        try:
            answer = ScoreAnswer.FromString(await self._call(request, timeout=self._deadline))
        except DecodeError:
            answer = ScoreAnswer()
        except grpc.aio.AioRpcError as error:
            raise self._failed(error.code(), error.details() or "") from None
        if len(answer.outcomes) != len(together):
            raise Refusal(Reason.BAD_PEER, "the label party sent an answer to something else")
        self._each_alone = answer.waits
        return answer.outcomes

    def _failed(self, code: grpc.StatusCode, details: str) -> Refusal:
        if code != grpc.StatusCode.DEADLINE_EXCEEDED:
            return _refusal(code, details)
        within = f"within {self._deadline:g} s"
        if self._channel.get_state() == grpc.ChannelConnectivity.READY:
            return Refusal(Reason.TOO_LATE, f"the label party has not answered {within}")
        return Refusal(Reason.UNREACHABLE, f"the label party at {self._address} could not be reached {within}")


def _refusal(code: grpc.StatusCode, sentence: str) -> Refusal:
    reason = next((reason for reason in Reason if reason.grpc == code), Reason.BAD_PEER)
    return Refusal(reason, f"the label party says: {as_sentence(sentence) or code.name.lower()}")


def _checked(outcome: Outcome, records: int) -> Array | Refusal | None:
    """Return the scores of an outcome, `[n]` or `[n, k]`, if they can be probabilities of so many records."""
    if outcome.code:
        return _refusal(_CODES.get(outcome.code, grpc.StatusCode.UNKNOWN), outcome.sentence)
    if not outcome.scores:
        return None
    scores = np.frombuffer(outcome.scores, dtype="<f4") if len(outcome.scores) % 4 == 0 else np.empty(0, "<f4")
    if len(scores) == 0 or len(scores) % records or not ((scores >= 0) & (scores <= 1)).all():
        return Refusal(Reason.BAD_PEER, f"the label party sent no scores of {records} records")
    return scores if len(scores) == records else scores.reshape(records, -1)
