"""The feature party's client against label parties that lie, are slow, or are not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from tpsl.net.scoring_pb2 import ScoreAnswer, ScoreRequest
from tpsl.serving.label_client import LabelClient
from tpsl.serving.refusals import Reason, Refusal

SHARE = np.ones((3, 2), np.float32)
Answering = Callable[[ScoreRequest], Awaitable[bytes]]


def scores(*values: float) -> bytes:
    return ScoreAnswer(scores=np.asarray(values, "<f4").tobytes()).SerializeToString()


class Abort(Exception):
    """The call ends with this status."""


@asynccontextmanager
async def label_party(answer: Answering, deadline: float = 60.0) -> AsyncIterator[LabelClient]:
    """A client of a label party that answers calls so."""

    async def handle(data: bytes, context: Any) -> bytes:
        try:
            return await answer(ScoreRequest.FromString(data))
        except Abort as abort:
            await context.abort(*abort.args)

    server = grpc.aio.server()
    method = {"Score": grpc.unary_unary_rpc_method_handler(handle)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tpsl.scoring.Scoring", method),))
    local = grpc.local_server_credentials(grpc.LocalConnectionType.LOCAL_TCP)
    port = server.add_secure_port("127.0.0.1:0", local)
    await server.start()
    client = LabelClient(f"127.0.0.1:{port}", "shop", None, deadline)
    yield client
    await client.close()
    await server.stop(None)


LIES: dict[bytes, str] = {
    b"\xff\xff": "no answer to a request for scores",
    scores(0.1, 0.2): "no scores of 3 records",
    ScoreAnswer(scores=b"abc").SerializeToString(): "no scores of 3 records",
    scores(0.1, 0.2, 1.5): "no scores of 3 records",
    scores(0.1, np.nan, 0): "no scores of 3 records",
}


@pytest.mark.parametrize("content", LIES)
def test_what_is_no_answer_is_refused(content: bytes) -> None:
    async def lie(request: ScoreRequest) -> bytes:
        return content

    async def main() -> None:
        async with label_party(lie) as client:
            with pytest.raises(Refusal, match=LIES[content]) as refused:
                await client.score("v", "k", SHARE)
            assert refused.value.reason == Reason.BAD_PEER

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "sentence", "reason", "said"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "bu\x1b[2Jsy\n", Reason.BUSY, "the label party says: bu [2Jsy "),
        (grpc.StatusCode.DATA_LOSS, "", Reason.BAD_PEER, "the label party says: data_loss"),
    ],
)
def test_a_refusal_is_passed_on_as_a_sentence(code: grpc.StatusCode, sentence: str, reason: Reason, said: str) -> None:
    async def refuse(request: ScoreRequest) -> bytes:
        raise Abort(code, sentence)

    async def main() -> None:
        async with label_party(refuse) as client:
            with pytest.raises(Refusal) as refused:
                await client.score("v", "k", SHARE)
            assert (refused.value.reason, str(refused.value)) == (reason, said)

    asyncio.run(main())


def test_scores_of_one_and_of_several_classes() -> None:
    async def answer(request: ScoreRequest) -> bytes:
        assert (request.party, request.version, request.records) == ("shop", "v", 3)
        assert request.numbers == SHARE.tobytes()
        return {"two": scores(0, 0.5, 1), "many": scores(*[0.5] * 6), "nothing": b""}[request.key]

    async def main() -> None:
        async with label_party(answer) as client:
            assert np.array_equal(await client.score("v", "two", SHARE), [0, 0.5, 1])
            assert (await client.score("v", "many", SHARE)).shape == (3, 2)
            assert await client.score("v", "nothing", SHARE) is None

    asyncio.run(main())


@pytest.mark.parametrize("code", ["UNAVAILABLE", "CANCELLED"])
def test_a_call_that_is_lost_is_made_again(code: str) -> None:
    """gRPC itself does, with the same bytes, also if they are as many as a call may have."""
    asked: list[bytes] = []
    large = np.ones((1024, 250), np.float32)

    async def answer(request: ScoreRequest) -> bytes:
        asked.append(request.SerializeToString())
        if len(asked) < 4:
            raise Abort(grpc.StatusCode[code])
        return scores(*[0.5] * 1024)

    async def main() -> None:
        async with label_party(answer) as client:
            assert len(await client.score("v", "k", large)) == 1024
            assert len(asked) == 4
            assert len(set(asked)) == 1

    asyncio.run(main())


def test_one_that_does_not_answer_costs_the_deadline() -> None:
    async def answer(request: ScoreRequest) -> bytes:
        await asyncio.sleep(60)
        return b""

    async def main() -> None:
        async with label_party(answer, deadline=0.3) as client:
            with pytest.raises(Refusal, match=r"the label party has not answered within 0\.3 s") as refused:
                await client.score("v", "k", SHARE)
            assert refused.value.reason == Reason.TOO_LATE

    asyncio.run(main())


def test_one_that_is_not_there_is_named() -> None:
    async def main() -> None:
        client = LabelClient("127.0.0.1:1", "shop", None, 0.3)
        with pytest.raises(Refusal, match=r"the label party at 127\.0\.0\.1:1 could not be reached within") as refused:
            await client.score("v", "k", SHARE)
        assert refused.value.reason == Reason.UNREACHABLE
        assert not client.is_connected()
        await client.close()

    asyncio.run(main())


def test_a_share_that_no_call_carries_is_refused() -> None:
    async def main() -> None:
        client = LabelClient("127.0.0.1:1", "shop", None, 0.3)
        with pytest.raises(Refusal, match="1024 records make a message of") as refused:
            await client.score("v", "k", np.ones((1024, 300), np.float32))
        assert refused.value.reason == Reason.TOO_LARGE
        await client.close()

    asyncio.run(main())
