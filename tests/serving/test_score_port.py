"""The label party's port takes nothing on trust: who calls, what for, how much, and what the numbers are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tpsl.net.certificates import LABEL_SERVER_NAME, Certificates
from tpsl.net.scoring_pb2 import ScoreAnswer, ScoreRequest
from tpsl.run.run_folder import RunFolder
from tpsl.serving import gathering, score_port

from .conftest import happens

Serve = Callable[..., Any]


class Peer:
    """A caller that sends what it likes."""

    def __init__(self, served: Any, certificates: Path, party: str) -> None:
        credentials = Certificates.load(certificates / party).channel()
        options = [("grpc.ssl_target_name_override", LABEL_SERVER_NAME)]
        self._channel = grpc.aio.secure_channel(served.label.address, credentials, options=options)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self._channel.close()

    async def score(self, data: bytes) -> tuple[str, str, bytes]:
        """Return code, sentence and scores of a call."""
        try:
            answer = await self._channel.unary_unary("/tpsl.scoring.Scoring/Score")(data)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or "", b""
        return "OK", "", ScoreAnswer.FromString(answer).scores


def request(run: Path, **changes: Any) -> bytes:
    """An honest request of the shop, with changes."""
    honest = {"party": "shop", "version": RunFolder(run).version("shop"), "key": "k", "records": 2}
    return ScoreRequest(**honest | {"numbers": np.ones((2, 8), "<f4").tobytes()} | changes).SerializeToString()


HOSTILE: list[tuple[dict[str, Any], str, str]] = [
    ({"version": "00ff"}, "FAILED_PRECONDITION", "has the version '00ff'; this service goes with"),
    ({"records": 3}, "INVALID_ARGUMENT", "a share of 3 records of width 8 has 96 bytes, not 64"),
    ({"records": 0, "numbers": b""}, "INVALID_ARGUMENT", "1 to 1,024 records, not 0"),
    ({"records": 4_000_000_000}, "INVALID_ARGUMENT", "1 to 1,024 records, not 4,000,000,000"),
    ({"numbers": np.full((2, 8), np.nan, "<f4").tobytes()}, "INVALID_ARGUMENT", "numbers that are not finite"),
    ({"numbers": np.full((2, 8), -np.inf, "<f4").tobytes()}, "INVALID_ARGUMENT", "numbers that are not finite"),
    ({"key": ""}, "INVALID_ARGUMENT", "a key is a text of 1 to 128 printable characters"),
    ({"key": "k\x1b[2J"}, "INVALID_ARGUMENT", "a key is a text of 1 to 128 printable characters"),
    ({"party": "bank"}, "PERMISSION_DENIED", "the certificate is not that of 'bank'"),
    ({"party": "label"}, "PERMISSION_DENIED", "the certificate is not that of 'label'"),
    ({"numbers": bytes(2 << 20)}, "RESOURCE_EXHAUSTED", "larger than max"),
]


def test_a_hostile_share_is_refused(served_runs: Path, serve: Serve, certificates: Path) -> None:
    run = served_runs / "alone"

    async def main() -> None:
        async with serve(run) as served, Peer(served, certificates, "shop") as peer:
            for changes, code, sentence in HOSTILE:
                found, details, _ = await peer.score(request(run, **changes))
                assert (found, sentence in details) == (code, True), (changes, found, details)
            code, details, _ = await peer.score(b"\xff\xff")
            assert (code, details) == ("INVALID_ARGUMENT", "this is no request for scores")
            assert (await peer.score(request(run)))[0] == "OK"

    asyncio.run(main())


def test_a_certificate_of_no_feature_party_gets_nothing(served_runs: Path, serve: Serve, certificates: Path) -> None:
    run = served_runs / "alone"

    async def main() -> None:
        async with serve(run) as served, Peer(served, certificates, "stranger") as stranger:
            code, details, _ = await stranger.score(request(run, party="stranger"))
            assert (code, details) == ("PERMISSION_DENIED", "'stranger' is not a feature party of this model")
            assert (await stranger.score(request(run)))[0] == "PERMISSION_DENIED"
            assert 'tpsl_refusals_total{reason="forbidden"} 2.0' in (await served.ask("label", "/metrics")).content

    asyncio.run(main())


def test_numbers_so_large_that_there_is_no_score(served_runs: Path, serve: Serve, certificates: Path) -> None:
    """Finite, but the network overflows: neither the caller nor the label party's application gets a NaN."""
    run, huge = served_runs / "alone", np.full((2, 8), 3e38, "<f4")
    huge[:, ::2] *= -1

    async def main() -> None:
        async with serve(run) as served, Peer(served, certificates, "shop") as peer:
            code, sentence, found = await peer.score(request(run, numbers=huge.tobytes()))
            own = await served.ask("label", "/v1/score", {"key": "k"})
            if code == "OK":  # the weights were small enough
                assert np.isfinite(np.frombuffer(found, "<f4")).all()
            else:
                assert (code, own.status) == ("INTERNAL", 502)
                assert (
                    sentence
                    == own.content["error"]
                    == ("a share of this request holds numbers so large that it has no score")
                )

    asyncio.run(main())


def test_silent_connections_keep_no_party_out(served_runs: Path, serve: Serve, certificates: Path) -> None:
    run = served_runs / "alone"

    async def main() -> None:
        async with serve(run) as served:
            host, _, port = served.label.address.rpartition(":")
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(64)]
            async with Peer(served, certificates, "shop") as peer:
                assert (await peer.score(request(run)))[0] == "OK"
            for _, writer in silent:
                writer.close()

    asyncio.run(main())


def test_a_share_may_be_repeated_but_not_replaced(served_runs: Path, serve: Serve, certificates: Path) -> None:
    run = served_runs / "alone"

    async def main() -> None:
        async with serve(run) as served, Peer(served, certificates, "shop") as peer:
            first, again = [await peer.score(request(run)) for _ in range(2)]
            assert first == again
            other = await peer.score(request(run, numbers=np.zeros((2, 8), "<f4").tobytes()))
            assert other[:2] == ("ALREADY_EXISTS", "the key 'k' holds another share of yours already")

    asyncio.run(main())


def test_scores_are_forgotten_after_the_deadline(served_runs: Path, serve: Serve, certificates: Path) -> None:
    run = served_runs / "alone"

    async def main() -> None:
        async with serve(run, deadline=0.2) as served, Peer(served, certificates, "shop") as peer:
            assert (await peer.score(request(run)))[0] == "OK"
            await asyncio.sleep(0.5)
            other = await peer.score(request(run, numbers=np.zeros((2, 8), "<f4").tobytes()))
            assert other[0] == "OK"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("place", "limit", "most"),
    [
        (gathering, "MOST_OPEN_PER_PARTY", 3),
        (gathering, "MOST_WAITING_BYTES", 3 * 64),
        (score_port, "MOST_CALLS_PER_PARTY", 3),
    ],
)
def test_one_party_cannot_crowd_out_the_others(
    served_runs: Path,
    serve: Serve,
    certificates: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    limit: str,
    most: int,
) -> None:
    """Not by the number of requests that it begins, nor by the bytes of its shares, nor by the calls that wait."""
    monkeypatch.setattr(place, limit, most)
    run = served_runs / "joint"

    async def main() -> None:
        async with serve(run, "bank", deadline=2.0) as served, Peer(served, certificates, "shop") as peer:
            calls = [asyncio.create_task(peer.score(request(run, key=f"flood-{n}"))) for n in range(5)]
            await happens(lambda: sum(call.done() for call in calls) >= 2)
            refused, waiting = ([call for call in calls if call.done() is done] for done in (True, False))
            assert [task.result()[0] for task in refused] == ["RESOURCE_EXHAUSTED"] * 2
            # The other party's request is taken in, and waits for its missing parts as it would in peace.
            bank = await served.score("bank", [{"amount": 1.0}], "k")
            assert (bank.status, "nothing came from feature party 'shop'" in bank.content["error"]) == (504, True)
            assert {(await task)[0] for task in waiting} == {"ABORTED"}

    asyncio.run(main())


def test_shares_that_wait_are_bounded_in_bytes(
    served_runs: Path, serve: Serve, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MOST_WAITING_BYTES", 3 * 64)
    run = served_runs / "joint"

    async def main() -> None:
        async with serve(run, deadline=2.0) as served, Peer(served, certificates, "shop") as peer:
            calls = [asyncio.create_task(peer.score(request(run, key=f"flood-{n}"))) for n in range(5)]
            codes = sorted([(await task)[0] for task in calls])
            assert codes == ["ABORTED"] * 3 + ["RESOURCE_EXHAUSTED"] * 2
            # What has expired makes room again.
            assert (await peer.score(request(run, key="later")))[0] == "ABORTED"

    asyncio.run(main())


def test_a_service_that_is_stopping_refuses_calls(served_runs: Path, serve: Serve, certificates: Path) -> None:
    """With the code at which gRPC makes it again, so that the next process gets it."""
    run = served_runs / "joint"

    async def main() -> None:
        async with serve(run) as served, Peer(served, certificates, "shop") as peer:
            waiting = asyncio.create_task(peer.score(request(run)))
            await happens(lambda: "k" in served.label._gathering._requests)
            served.label._gathering.close()
            assert (await waiting)[0] == "UNAVAILABLE"
            assert (await peer.score(request(run, key="new")))[0] == "UNAVAILABLE"

    asyncio.run(main())
