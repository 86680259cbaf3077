"""The feature party's client against label parties that lie, are slow, or are not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from tpsl.net.scoring_pb2 import Outcome, ScoreAnswer, ScoreRequest
from tpsl.serving.label_client import LabelClient
from tpsl.serving.refusals import Reason, Refusal

SHARE = np.ones((3, 2), np.float32)
Answering = Callable[[ScoreRequest], Awaitable[bytes]]


def scores(*values: float) -> Outcome:
    return Outcome(scores=np.asarray(values, "<f4").tobytes())


class Abort(Exception):
    """The call ends with this status."""


@asynccontextmanager
async def label_party(answer: Answering, deadline: float = 60.0) -> AsyncIterator[LabelClient]:
    """A client of a label party that answers calls so."""

    async def handle(data: bytes, context: Any) -> bytes:
        try:
            return await answer(ScoreRequest.FromString(data))
        except Abort as abort:
            await context.abort(abort.args[0])

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


LIES: list[tuple[bytes, Reason, str]] = [
    (b"\xff\xff", Reason.BAD_PEER, "an answer to something else"),
    (b"", Reason.BAD_PEER, "an answer to something else"),
    (ScoreAnswer(outcomes=[Outcome()] * 2).SerializeToString(), Reason.BAD_PEER, "an answer to something else"),
    (ScoreAnswer(outcomes=[scores(0.1, 0.2)]).SerializeToString(), Reason.BAD_PEER, "no scores of 3 records"),
    (ScoreAnswer(outcomes=[Outcome(scores=b"abc")]).SerializeToString(), Reason.BAD_PEER, "no scores of 3 records"),
    (ScoreAnswer(outcomes=[scores(0.1, 0.2, 1.5)]).SerializeToString(), Reason.BAD_PEER, "no scores of 3 records"),
    (ScoreAnswer(outcomes=[scores(0.1, np.nan, 0)]).SerializeToString(), Reason.BAD_PEER, "no scores of 3 records"),
    (ScoreAnswer(outcomes=[Outcome(code=77)]).SerializeToString(), Reason.BAD_PEER, "the label party says: unknown"),
    (
        ScoreAnswer(outcomes=[Outcome(code=8, sentence="bu\x1b[2Jsy\n")]).SerializeToString(),
        Reason.BUSY,
        "the label party says: bu [2Jsy ",
    ),
]


@pytest.mark.parametrize(("content", "reason", "sentence"), LIES)
def test_what_is_no_answer_is_refused(content: bytes, reason: Reason, sentence: str) -> None:
    async def lie(request: ScoreRequest) -> bytes:
        return content

    async def main() -> None:
        async with label_party(lie) as client:
            with pytest.raises(Refusal) as refused:
                await client.score("v", "k", SHARE)
            assert refused.value.reason == reason
            assert sentence in str(refused.value)

    asyncio.run(main())


def test_scores_of_one_and_of_several_classes() -> None:
    async def answer(request: ScoreRequest) -> bytes:
        (share,) = request.shares
        assert (request.party, request.version, share.records, share.numbers) == ("shop", "v", 3, SHARE.tobytes())
        found = {"two": scores(0, 0.5, 1), "many": scores(*[0.5] * 6), "nothing": Outcome()}[share.key]
        return ScoreAnswer(outcomes=[found], waits=True).SerializeToString()

    async def main() -> None:
        async with label_party(answer) as client:
            assert np.array_equal(await client.score("v", "two", SHARE), [0, 0.5, 1])
            assert (await client.score("v", "many", SHARE)).shape == (3, 2)
            assert await client.score("v", "nothing", SHARE) is None

    asyncio.run(main())


@pytest.mark.parametrize("waits", [False, True])
def test_shares_go_together_only_where_none_waits_for_other_parties(waits: bool) -> None:
    calls: list[tuple[str, list[str]]] = []

    async def answer(request: ScoreRequest) -> bytes:
        calls.append((request.version, [share.key for share in request.shares]))
        return ScoreAnswer(outcomes=[scores(0, 0, 1)] * len(request.shares), waits=waits).SerializeToString()

    async def main() -> None:
        async with label_party(answer) as client:
            await client.score("old", "first", SHARE)
            keys = [*(f"k{number}" for number in range(70)), "left", "newest"]
            versions = {key: "new" if key == "newest" else "old" for key in keys}
            asked = {key: asyncio.create_task(client.score(versions[key], key, SHARE)) for key in keys}
            await asyncio.sleep(0)  # all of them come at this moment
            asked.pop("left").cancel()  # nobody waits for its scores
            assert all(np.array_equal(found, [0, 0, 1]) for found in await asyncio.gather(*asked.values()))
            if waits:
                assert sorted(calls[1:]) == sorted((versions[key], [key]) for key in asked)
            else:  # in as few calls as hold them, versions apart
                assert sorted(calls[1:]) == [("new", ["newest"]), ("old", keys[:64]), ("old", keys[64:70])]

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
        return ScoreAnswer(outcomes=[scores(*[0.5] * 1024)]).SerializeToString()

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
        assert not await client.is_healthy()
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
