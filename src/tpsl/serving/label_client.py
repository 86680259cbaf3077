"""A feature party's way to the label party's scoring service, through its restarts.

While calls are under way, what comes in the meantime goes with the next one: a call costs more than the shares in it.
Only where outcomes wait for other parties each share has a call of its own, so that none holds up another.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
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

_CALLS_AT_ONCE = 2
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 250
_PAUSE_SECONDS, _CHECK_SECONDS = 0.01, 2.0
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How a call ends whose connection breaks, or whose server stops."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True)
class _Sending:
    version: str
    share: Share
    size: int
    until: float
    scores: asyncio.Future[Array | None]


class LabelClient:
    """Calls the label party at an address. Without credentials only on loopback."""

    def __init__(self, address: str, party: str, credentials: grpc.ChannelCredentials | None, deadline: float) -> None:
        if credentials is None:
            require_loopback(address)
        options: Options = [
            *message_options(MOST_MESSAGE_BYTES),
            ("grpc.initial_reconnect_backoff_ms", _FIRST_PAUSE_MS),
            ("grpc.max_reconnect_backoff_ms", _LONGEST_PAUSE_MS),
            ("grpc.ssl_target_name_override", LABEL_SERVER_NAME) if credentials else ("grpc.enable_http_proxy", 0),
        ]
        local = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
        self._address, self._party, self._deadline = address, party, deadline
        self._channel = grpc.aio.secure_channel(address, credentials or local, options=options)
        self._call = self._channel.unary_unary(f"/{SERVICE}/{METHOD}", None, None)
        self._checking = asyncio.create_task(self._check_health())
        self._waiting: deque[_Sending] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._each_alone = True  # until the label party says that nothing waits for other parties
        self.is_healthy = False
        """Whether the label party's service has answered the last health check."""

    async def close(self) -> None:
        """End the connection."""
        self._checking.cancel()
        await self._channel.close(None)

    async def score(self, version: str, key: str, share: Array) -> Array | None:
        """Send a share; return the scores that come back, None where the job returns nothing.

        A call that was lost is repeated until the deadline: the same share under the same key is the same request.
        """
        until, scores = time.monotonic() + self._deadline, asyncio.get_running_loop().create_future()
        part = Share(key=key, records=len(share), numbers=share.astype("<f4").tobytes())
        size = part.ByteSize() + len(version) + len(self._party) + 32  # tags and lengths
        if size > MOST_MESSAGE_BYTES:
            raise Refusal(
                Reason.TOO_LARGE,
                f"{len(share)} records make a message of {size:,} bytes, more than {MOST_MESSAGE_BYTES:,}",
            )
        self._waiting.append(_Sending(version, part, size, until, scores))
        asyncio.get_running_loop().call_soon(self._send)  # shares that were computed together go together
        found: Array | None = await scores
        return found

    async def _check_health(self) -> None:
        """Ask how the label party is, again and again: its door closes connections on which nobody asks anything."""
        check = self._channel.unary_unary(f"/{HEALTH}/{CHECK}", None, None)
        while True:
            try:
                answer = HealthCheckResponse.FromString(await check(b"", timeout=_CHECK_SECONDS))
                self.is_healthy = answer.status == HealthCheckResponse.SERVING
            except (grpc.aio.AioRpcError, DecodeError):
                self.is_healthy = False
            await asyncio.sleep(_CHECK_SECONDS)

    def _send(self) -> None:
        """Begin calls with what waits, as many as may be under way."""
        while self._waiting and (self._each_alone or len(self._calls) < _CALLS_AT_ONCE):
            if together := self._next_call():
                call = asyncio.create_task(self._answered(together))
                self._calls.add(call)
                call.add_done_callback(self._done)

    def _done(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._send()

    def _next_call(self) -> list[_Sending]:
        """Take shares of one version that fit into a call off the queue; those that nobody waits for are left out."""
        together: list[_Sending] = []
        most = 1 if self._each_alone else MOST_SHARES
        room = MOST_MESSAGE_BYTES
        while self._waiting and len(together) < most:
            first = self._waiting[0]
            room -= first.size
            if together and (first.version != together[0].version or room < 0):
                break
            self._waiting.popleft()
            if not first.scores.done():
                together.append(first)
        return together

    async def _answered(self, together: list[_Sending]) -> None:
        """Make one call, again if it was lost, and hand out its outcomes."""
        try:
            outcomes = await self._outcomes(together)
        except Exception as error:  # whatever it is, nobody may wait for ever
            for sent in together:
                _hand_out(sent, error)
            return
        for sent, outcome in zip(together, outcomes, strict=True):
            found = _checked(outcome, sent.share.records)
            if isinstance(found, Refusal) and found.reason == Reason.UNREACHABLE and time.monotonic() < sent.until:
                asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._send_again, sent)  # its service is stopping
            else:
                _hand_out(sent, found)

    def _send_again(self, sent: _Sending) -> None:
        self._waiting.append(sent)
        self._send()

    async def _outcomes(self, together: list[_Sending]) -> Sequence[Outcome]:
        request = ScoreRequest(
            party=self._party, version=together[0].version, shares=[sent.share for sent in together]
        ).SerializeToString()
        content = await self._repeated(request, together[-1].until)
        try:
            answer = ScoreAnswer.FromString(content)
        except DecodeError:
            answer = ScoreAnswer()
        if len(answer.outcomes) != len(together):
            raise Refusal(Reason.BAD_PEER, "the label party sent an answer to something else")
        self._each_alone = answer.waits
        return answer.outcomes

    async def _repeated(self, request: bytes, until: float) -> bytes:
        """Return the answer to a call, which is made again where it was lost."""
        while True:
            try:
                content: bytes = await self._call(request, timeout=until - time.monotonic(), wait_for_ready=True)
                return content
            except grpc.aio.AioRpcError as error:
                if time.monotonic() >= until:
                    raise self._too_late() from None
                if error.code() not in _LOST:
                    raise _refusal(error.code(), error.details() or "") from None
                await asyncio.sleep(_PAUSE_SECONDS)  # where the connection is down, the next call waits until it is up

    def _too_late(self) -> Refusal:
        within = f"within {self._deadline:g} s"
        if self._channel.get_state() == grpc.ChannelConnectivity.READY:
            return Refusal(Reason.TOO_LATE, f"the label party has not answered {within}")
        return Refusal(Reason.UNREACHABLE, f"the label party at {self._address} could not be reached {within}")


def _refusal(code: grpc.StatusCode, sentence: str) -> Refusal:
    reason = next((reason for reason in Reason if reason.grpc == code), Reason.BAD_PEER)
    return Refusal(reason, f"the label party says: {as_sentence(sentence) or code.name.lower()}")


def _hand_out(sent: _Sending, found: Array | Exception | None) -> None:
    if sent.scores.done():
        return  # the client has gone away
    if isinstance(found, Exception):
        sent.scores.set_exception(found)
    else:
        sent.scores.set_result(found)


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
