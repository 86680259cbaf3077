"""Both services over mutual TLS: the scores of the run itself, to the last bit, and none for whom they are not."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tpsl.model.predictors import PredictionError
from tpsl.model.trained import TrainedModel
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.stages.collect import STATISTIC_HEAD
from tpsl.select.search import tune
from tpsl.serving import gathering, http_server

from .conftest import happens, port_of

Serve = Callable[..., Any]
RECORDS: list[dict[str, Any]] = [
    {
        "colour": ("red", "green", "blue", None)[number % 4],
        "size": 4.5 + number / 3 if number % 7 else None,
        "bought": f"2024-{1 + number % 12:02d}-15",
        "amount": 0.25 * number,
        "kind": ("new", "old")[number % 2],
    }
    for number in range(32)
]


def predicted(run: Path, *parties: str, records: list[dict[str, Any]] = RECORDS, local_head: bool = False) -> Any:
    """What the halves say, without a service."""
    shares = {}
    for party in parties:
        features = RunFolder(run).encoder(party).encode_records(records)
        shares[party] = TrainedModel.open(run).embedder(party).embed(features)
    return TrainedModel.open(run).predictor(local_head=local_head).probabilities(shares)


def floats(scores: Any) -> Any:
    return np.asarray(scores, dtype=np.float32)


def test_scores_are_those_of_the_halves_to_the_last_bit(served_runs: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(served_runs / "alone", "shop") as served:
            reply = await served.score("shop", RECORDS, "one")
            assert reply.status == 200, reply.content
            assert np.array_equal(floats(reply.content["scores"]), predicted(served_runs / "alone", "shop"))
            # The label party's own application finds the same scores under the key.
            again = await served.ask("label", "/v1/score", {"key": "one"})
            assert again.content == reply.content

    asyncio.run(main())


def test_every_party_contributes_to_a_request(served_runs: Path, serve: Serve) -> None:
    """Whoever comes first waits for the others; feature parties get rounded scores, the label party all digits."""
    run = served_runs / "joint"

    async def main() -> None:
        async with serve(run, "shop", "bank") as served:
            own = served.ask("label", "/v1/score", {"key": "k", "records": RECORDS})
            label, shop, bank = await asyncio.gather(
                own, served.score("shop", RECORDS, "k"), served.score("bank", RECORDS, "k")
            )
            expected = predicted(run, "shop", "bank", "label")
            assert np.array_equal(floats(label.content["scores"]), expected)
            assert np.array_equal(floats(shop.content["scores"]), expected.round(2))
            assert shop.content["scores"] == [round(score, 2) for score in shop.content["scores"]]  # no 0.600000024
            assert shop.content["scores"] == bank.content["scores"]

    asyncio.run(main())


def test_a_member_of_an_ensemble_is_another_model(served_runs: Path, serve: Serve, tmp_path: Path) -> None:
    tune(RunSetup(RunFolder(served_runs / "alone").job(), RunFolder(tmp_path / "tuned")), [{}])
    model = TrainedModel.open(tmp_path / "tuned")

    async def main() -> None:
        async with serve(tmp_path / "tuned", "shop", feature_run=model.run.path) as served:
            assert served.label.versions.newest.name == model.version("shop")
            reply = await served.score("shop", RECORDS, "one")
            assert (reply.status, reply.content["code"]) == (412, "unknown_version")

    asyncio.run(main())


def test_the_head_of_a_statistic_is_served_as_the_private_head(served_runs: Path, serve: Serve, tmp_path: Path) -> None:
    content = RunFolder(served_runs / "joint").job().model_dump(mode="json", exclude={"method", "statistic"})
    job = make_job(content | {"statistic": {"share_codes": True}}, {}, "test")
    train(job, tmp_path / "run")
    head = tmp_path / "run" / "label" / STATISTIC_HEAD
    tensors = load_file(head)  # these labels are independent of the features: the head is the base rate
    tensors["weights"] = torch.randn(tensors["weights"].shape, generator=torch.Generator().manual_seed(0))
    save_file(tensors, head)

    async def main() -> None:
        async with serve(tmp_path / "run", "shop", "bank") as served:
            own = served.ask("label", "/v1/score", {"key": "k", "records": RECORDS})
            label, _, _ = await asyncio.gather(
                own, served.score("shop", RECORDS, "k"), served.score("bank", RECORDS, "k")
            )
            expected = predicted(tmp_path / "run", "shop", "bank", "label")
            assert np.array_equal(floats(label.content["scores"]), expected)
            assert expected.std() > 1e-2

    asyncio.run(main())


def test_where_nothing_comes_back_a_feature_party_gets_an_acknowledgement(served_runs: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(served_runs / "alone", "shop", returns="nothing") as served:
            reply = await served.score("shop", RECORDS, "k")
            assert reply.content == {"key": "k", "accepted": True}
            own = await served.ask("label", "/v1/score", {"key": "k"})
            assert np.array_equal(floats(own.content["scores"]), predicted(served_runs / "alone", "shop"))

    asyncio.run(main())


def test_a_local_head_is_for_the_label_partys_own_applications(served_runs: Path, serve: Serve) -> None:
    """The feature party sends the share of its frozen pre-trained half too, whichever head is served."""
    run = served_runs / "local"

    async def main() -> None:
        async with serve(run, "shop", local_head=True) as served:
            reply = await served.score("shop", RECORDS, "k")
            assert reply.content == {"key": "k", "accepted": True}
            own = await served.ask("label", "/v1/score", {"key": "k"})
            expected = predicted(run, "shop", local_head=True)
            assert np.array_equal(floats(own.content["scores"]), expected)
            assert not np.array_equal(expected, predicted(run, "shop"))
        async with serve(run, "shop") as served:
            await served.score("shop", RECORDS, "k")
            private = await served.ask("label", "/v1/score", {"key": "k"})
            assert np.array_equal(floats(private.content["scores"]), predicted(run, "shop"))

    asyncio.run(main())


def test_a_local_head_is_refused_where_scores_would_leave(served_runs: Path, serve: Serve, tmp_path: Path) -> None:
    async def main(run: Path) -> None:
        async with serve(run, local_head=True):
            raise AssertionError("it is served")

    def changed(name: str, before: str, after: str) -> Path:
        shutil.copytree(served_runs / name, tmp_path / name)
        job = tmp_path / name / "job.yaml"
        assert f"returns: {before}" in job.read_text()
        job.write_text(job.read_text().replace(f"returns: {before}", f"returns: {after}"))
        return job.parent

    with pytest.raises(PredictionError, match="the run has no local head"):
        asyncio.run(main(changed("alone", "score", "nothing")))
    with pytest.raises(PredictionError, match="scores of a local head never leave the label party"):
        asyncio.run(main(changed("local", "nothing", "score")))


def test_new_records_are_scored_as_they_come(served_runs: Path, serve: Serve) -> None:
    """Unseen categories, missing values, another order of columns, more columns; a missing column is named."""
    run = served_runs / "alone"
    odd = [
        {"more": [1], "size": None, "colour": "mauve", "bought": "2031-01-01"},
        {"bought": None, "colour": None, "size": 1e9},
    ]

    async def main() -> None:
        async with serve(run, "shop") as served:
            reply = await served.score("shop", odd)
            assert np.array_equal(floats(reply.content["scores"]), predicted(run, "shop", records=odd))
            assert len(reply.content["key"]) == 32
            lacking = await served.score("shop", [{"colour": "red", "bought": "2024-01-01"}])
            assert (lacking.status, lacking.content["error"].count("'size'")) == (400, 1)

    asyncio.run(main())


MISTAKES = [
    ({}, 400, '"records" is a list of objects'),
    ({"records": []}, 400, '"records" is a list of objects'),
    ({"records": [1]}, 400, '"records" is a list of objects'),
    ({"records": RECORDS, "key": 7}, 400, '"key" is a text, not int'),
    ({"records": RECORDS, "key": "k" * 129}, 400, "a key is a text of 1 to 128 printable characters"),
    ({"records": RECORDS, "key": "a\nb"}, 400, "a key is a text of 1 to 128 printable characters"),
    ({"records": RECORDS, "key": "\ud800"}, 400, "a key is a text of 1 to 128 printable characters"),
    ({"records": RECORDS * 33}, 413, "at most 1,024 records, not 1,056"),
    ({"records": [{**RECORDS[0], "size": 10**4000}]}, 400, "column 'size': the number inf is too large for float32"),
    ({"records": [{**RECORDS[0], "size": float("-inf")}]}, 400, "column 'size': the number -inf is too large"),
    ({"records": [{**RECORDS[0], "size": {}}]}, 400, "column 'size': {} is of type dict, which is not numeric"),
    ({"records": [{**RECORDS[0], "colour": [["red"]]}]}, 400, "column 'colour': [['red']] is of type list"),
    ({"records": [{**RECORDS[0], "bought": "9" * 5000}]}, 400, "cannot be read as a time"),
    ([RECORDS], 400, "the body is not a JSON object"),
]


def test_a_clients_mistake_is_named(served_runs: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(served_runs / "alone", "shop") as served:
            for content, status, sentence in MISTAKES:
                reply = await served.ask("shop", "/v1/score", content)
                assert (reply.status, sentence in reply.content["error"]) == (status, True), (reply, served.notices)
            assert (await served.score("shop", RECORDS)).status == 200

    asyncio.run(main())


BOMBS = [
    (b'{"records": ' + b"[" * 1_000_000, "the body is not JSON"),
    (b'{"a": ' * 500_000, "the body is not JSON"),
    (b'{"records": [{"size": ' + b"9" * 1_000_000 + b"}]}", "the body is not JSON"),
    (b"\xff\xfe", "the body is not JSON"),
    (b"", "the body is not JSON"),
]


def test_json_that_is_a_trap_is_refused(served_runs: Path, serve: Serve) -> None:
    def post(port: int, body: bytes) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/v1/score", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())["error"]

    async def main() -> None:
        async with serve(served_runs / "alone", "shop") as served:
            for body, sentence in BOMBS:
                for port in (port_of(served.label), port_of(served.features["shop"])):
                    status, error = await asyncio.to_thread(post, port, body)
                    assert (status, sentence in error) == (400, True), (body[:20], status, error)
            unseen = [{**RECORDS[0], "colour": "\ud800", "size": float("nan")}, {**RECORDS[0], "size": None}]
            found = floats((await served.score("shop", unseen)).content["scores"])
            assert np.isfinite(found).all()
            assert not served.notices

    asyncio.run(main())


def test_what_is_wrong_with_the_label_partys_records_only_the_label_party_reads(
    served_runs: Path, serve: Serve
) -> None:
    async def main() -> None:
        async with serve(served_runs / "joint", "shop", "bank") as served:
            without = await served.ask("label", "/v1/score", {"key": "a"})
            assert 'has features of its own: send "records"' in without.content["error"]
            no_key = await served.ask("label", "/v1/score", {"records": RECORDS})
            assert '"key" is missing' in no_key.content["error"]
            wrong = [{"colour": "red"}] * len(RECORDS)
            own, shop, bank = await asyncio.gather(
                served.ask("label", "/v1/score", {"key": "b", "records": wrong}),
                served.score("shop", RECORDS, "b"),
                served.score("bank", RECORDS, "b"),
            )
            assert (own.status, "'kind'" in own.content["error"]) == (400, True)
            for other in (shop, bank):
                assert other.status == 502
                assert other.content["error"].endswith("the label party cannot use its own records of this key")
        async with serve(served_runs / "alone", "shop") as served:
            more = await served.ask("label", "/v1/score", {"key": "a", "records": RECORDS})
            assert 'has no features of its own: leave out "records"' in more.content["error"]

    asyncio.run(main())


def test_own_records_that_wait_are_bounded_also_of_clients_that_have_gone(
    served_runs: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"records": RECORDS, "key": "k0"}
    monkeypatch.setattr(gathering, "MOST_WAITING_BYTES", 3 * len(json.dumps(content)))

    async def main() -> None:
        async with serve(served_runs / "joint", deadline=2.0) as served:
            for number in range(3):
                _, writer = await asyncio.open_connection("127.0.0.1", port_of(served.label))
                body = json.dumps({**content, "key": f"k{number}"})
                head = f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
                writer.write(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
                await happens(lambda: f"k{number}" in served.label._gathering._requests)  # noqa: B023
                writer.transport.abort()
            refused = await served.score("label", RECORDS, "k3")
            assert (refused.status, "too many bytes of label wait" in refused.content["error"]) == (503, True)
            await happens(lambda: not served.label._gathering._requests)
            assert (await served.score("label", RECORDS, "k4")).status == 504, "there is room again"

    asyncio.run(main())


def test_a_defect_at_the_label_party_is_told_to_nobody_else(
    served_runs: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever completes the request, and whoever waits for it."""

    async def main() -> None:
        async with serve(served_runs / "joint", "shop", "bank") as served:
            own = served.label.versions.newest.own.state
            encode = type(own).encode_records

            def defect(self: Any, records: Any) -> Any:
                if self is own:
                    raise KeyError("a secret of the label party")
                return encode(self, records)

            monkeypatch.setattr(type(own), "encode_records", defect)
            asking = asyncio.create_task(served.ask("label", "/v1/score", {"key": "k", "records": RECORDS}))
            await happens(lambda: "k" in served.label._gathering._requests)
            replies = await asyncio.gather(*(served.score(party, RECORDS, "k") for party in ("shop", "bank")))
            for reply in replies:
                assert (reply.status, reply.content["error"]) == (
                    502,
                    "the label party says: the label party has an error of its own",
                )
            assert (await asking).status == 500
            assert any("a secret" in notice for notice in served.notices)

    asyncio.run(main())


def test_a_request_that_stays_incomplete_is_refused_in_time(served_runs: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(served_runs / "joint", "shop", "bank", deadline=2.0) as served:
            asking = asyncio.gather(
                served.score("shop", RECORDS, "k"), served.ask("label", "/v1/score", {"key": "l", "records": RECORDS})
            )
            await happens(lambda: {"k", "l"} <= served.label._gathering._requests.keys())
            fewer = await served.score("bank", RECORDS[:5], "k")
            assert (fewer.status, "has 32 records elsewhere, not 5" in fewer.content["error"]) == (400, True)
            shop, label = await asking
            assert (shop.status, label.status) == (504, 504)
            assert "nothing came from any feature party under the key 'l' within 2 s" in label.content["error"]

    asyncio.run(main())


def test_requests_beyond_the_limit_are_refused_at_once(
    served_runs: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody contributes the rest; what waits for it is bounded, and the service says when to come back."""
    monkeypatch.setattr(http_server, "MOST_UNDER_WAY", 4)

    async def main() -> None:
        async with serve(served_runs / "joint", "shop", "bank", deadline=2.0) as served:
            replies = await asyncio.gather(*(served.score("shop", RECORDS, f"k{n}") for n in range(8)))
            assert sorted(reply.status for reply in replies) == [503] * 4 + [504] * 4
            refused = next(reply for reply in replies if reply.status == 503)
            assert refused.content["error"] == "4 requests are under way; ask again later"
            assert refused.headers["retry-after"] == "1"
            assert (await served.ask("shop", "/healthz")).status == 200
            assert 'tpsl_refusals_total{reason="busy"} 4.0' in (await served.ask("shop", "/metrics")).content

    asyncio.run(main())


@pytest.mark.parametrize(("first", "second"), [("label", "shop"), ("shop", "label")])
def test_a_new_model_is_taken_over_while_requests_are_under_way(
    first: str, second: str, served_runs: Path, serve: Serve, tmp_path: Path
) -> None:
    """Either side may switch first; every request is scored by one of the two models, the last one by the new."""
    old, new = (predicted(served_runs / name, "shop") for name in ("alone", "newer"))
    assert not np.allclose(old, new, rtol=0, atol=1e-4)
    links = {side: tmp_path / side for side in ("label", "shop")}
    for link in links.values():
        link.symlink_to(served_runs / "alone")

    async def main() -> None:
        async with serve(links["label"], "shop", feature_run=links["shop"]) as served:
            found = []

            async def ask_on(number: int) -> None:
                for turn in range(12):
                    reply = await served.score("shop", RECORDS, f"{number}-{turn}")
                    assert reply.status == 200, reply.content
                    found.append(floats(reply.content["scores"]))

            asking = [asyncio.create_task(ask_on(number)) for number in range(4)]
            for side in (first, second):
                await asyncio.sleep(0.05)
                links[side].unlink()
                links[side].symlink_to(served_runs / "newer")
                told = await served.ask(side, "/v1/models", {})
                assert told.content["changed"], told.content
                assert len(told.content["models"]) == 2
            await asyncio.gather(*asking)
            by_old, by_new = (
                sum(np.allclose(scores, model, rtol=0, atol=1e-6) for scores in found) for model in (old, new)
            )
            assert by_old + by_new == len(found) == 48
            await asyncio.sleep(1.0)  # a feature party that switched first tries again after a second
            last = await served.score("shop", RECORDS)
            assert np.array_equal(floats(last.content["scores"]), new)

    asyncio.run(main())


def test_a_folder_that_cannot_be_served_changes_nothing(served_runs: Path, serve: Serve, tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(served_runs / "alone")

    async def main() -> None:
        async with serve(link, "shop", feature_run=served_runs / "alone") as served:
            link.unlink()
            link.symlink_to(tmp_path / "nowhere")
            told = await served.ask("label", "/v1/models", {})
            assert (told.status, "the model stays as it was" in told.content["error"]) == (400, True)
            await served.label.versions.reload_and_tell()
            assert served.notices[-1].startswith("the model stays as it was")
            named = await served.ask("label", "/v1/models", {"run": str(served_runs / "newer")})
            assert (named.status, "on the command line" in named.content["error"]) == (400, True)
            assert (await served.score("shop", RECORDS)).status == 200

    asyncio.run(main())


def test_halves_of_two_runs_are_not_put_together(served_runs: Path, serve: Serve) -> None:
    newer = served_runs / "newer"

    async def main() -> None:
        async with serve(served_runs / "alone", "shop", feature_run=newer) as served:
            reply = await served.score("shop", RECORDS)
            assert reply.status == 412
            assert f"has the version '{RunFolder(newer).version('shop')[:16]}'" in reply.content["error"]

    asyncio.run(main())


def test_clients_that_go_away_disturb_nobody(served_runs: Path, serve: Serve) -> None:
    head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    body = b'{"key": "gone-%d", "records": [{"colour": "red", "size": 1, "bought": "2024-01-01"}]}'

    def come_and_go(port: int) -> None:
        for number in range(100):
            with socket.create_connection(("127.0.0.1", port)) as client:
                content = body % number
                client.sendall(head % len(content) + content[: len(content) - number % 2])

    async def main() -> None:
        async with serve(served_runs / "joint", "shop", "bank") as served:
            await asyncio.to_thread(come_and_go, port_of(served.features["shop"]))
            replies = await asyncio.gather(
                served.score("shop", RECORDS, "k"),
                served.score("bank", RECORDS, "k"),
                served.ask("label", "/v1/score", {"key": "k", "records": RECORDS}),
            )
            assert [reply.status for reply in replies] == [200] * 3
            assert "tpsl_waiting_requests 0.0" in (await served.ask("shop", "/metrics")).content
            assert served.notices == []

    asyncio.run(main())
