"""A feature party's way to the label party's scoring service, through its restarts.

gRPC makes a call again that was lost: the same share under the same key is the same request.
"""

from __future__ import annotations

import json

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from tpsl.net.certificates import LABEL_SERVER_NAME
from tpsl.net.codec import as_sentence
from tpsl.net.network import Options, message_options, require_loopback
from tpsl.net.scoring_pb2 import ScoreAnswer, ScoreRequest
from tpsl.serving.batching import Array
from tpsl.serving.refusals import Reason, Refusal
from tpsl.serving.score_port import METHOD, MOST_MESSAGE_BYTES, SERVICE

_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 250
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

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close(None)

    def is_connected(self) -> bool:
        """Whether there is a connection to the label party; if not, try to make one."""
        return self._channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY

    async def score(self, version: str, key: str, share: Array) -> Array | None:
        """Send a share; return the scores that come back, None where the job returns nothing."""
        numbers, records = share.astype("<f4").tobytes(), len(share)
        request = ScoreRequest(party=self._party, version=version, key=key, records=records, numbers=numbers)
        if (size := request.ByteSize()) > MOST_MESSAGE_BYTES:
            raise Refusal(
                Reason.TOO_LARGE,
                f"{records} records make a message of {size:,} bytes, more than {MOST_MESSAGE_BYTES:,}",
            )
        try:
            answer = await self._call(request.SerializeToString(), timeout=self._deadline)
            return _checked(ScoreAnswer.FromString(answer).scores, records)
        except DecodeError:
            raise Refusal(Reason.BAD_PEER, "the label party sent no answer to a request for scores") from None
        except grpc.aio.AioRpcError as error:
            raise self._failed(error.code(), error.details() or "") from None

    def _failed(self, code: grpc.StatusCode, details: str) -> Refusal:
        if code != grpc.StatusCode.DEADLINE_EXCEEDED:
            reason = next((reason for reason in Reason if reason.grpc == code), Reason.BAD_PEER)
            return Refusal(reason, f"the label party says: {as_sentence(details) or code.name.lower()}")
        within = f"within {self._deadline:g} s"
        if self._channel.get_state() == grpc.ChannelConnectivity.READY:
            return Refusal(Reason.TOO_LATE, f"the label party has not answered {within}")
        return Refusal(Reason.UNREACHABLE, f"the label party at {self._address} could not be reached {within}")


def _checked(content: bytes, records: int) -> Array | None:
    """Return the scores of an answer, `[n]` or `[n, k]`, if they can be probabilities of so many records."""
    if not content:
        return None
    scores = np.frombuffer(content, dtype="<f4") if len(content) % 4 == 0 else np.empty(0, "<f4")
    if len(scores) == 0 or len(scores) % records or not ((scores >= 0) & (scores <= 1)).all():
        raise Refusal(Reason.BAD_PEER, f"the label party sent no scores of {records} records")
    return scores if len(scores) == records else scores.reshape(records, -1)
