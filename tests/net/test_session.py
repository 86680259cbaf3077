"""Questions and answers over gRPC with mutual TLS: in order, pipelined, repeated, from several parties."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tpsl.net.agreement import Agreement
from tpsl.net.asking import AtHome, Due, Script
from tpsl.net.client import LabelClient
from tpsl.net.credentials import Certificates
from tpsl.net.desk import Desk, Patience, Terms
from tpsl.net.failures import BadMessage, JobStopped, NetError, PeerMissing, PeerRestarted, Refused
from tpsl.net.messages import Limits, Message
from tpsl.net.server import LabelServer

AGREED = Agreement({"protocol version": "1", "digest of the job": "abc"}, b"digest of the ids")
LIMITS = Limits(rows=64, width=8, calls=4)


def doubling(parties: tuple[str, ...], steps: int) -> Script:
    """A label party that answers each party with twice the sum of all."""
    for step in range(steps):
        question = yield Due("Step", step, 0, rows=3, widths=dict.fromkeys(parties, 2))
        total = sum(message.tensor for message in question.asked.values())
        question.answer({name: Message(tensor=2 * total) for name in question.asked})


class Scene:
    def __init__(self, certificates: Path, parties: tuple[str, ...] = ("airport",), **patience: float) -> None:
        self.seen: list[tuple[str, str]] = []
        self.folder, self.parties = certificates, parties
        self.terms = Terms(LIMITS, "float32", Patience(**{"silence": 2, "wait": 20, **patience}))
        watching = Terms(LIMITS, "float32", self.terms.patience, lambda *news: self.seen.append(news))
        self.desk = Desk(parties, AGREED, watching)
        self.server = LabelServer(
            "127.0.0.1:0", self.desk, ("Step",), certificates=Certificates.load(certificates / "label")
        )

    def client(self, party: str = "airport", agreed: Agreement = AGREED) -> LabelClient:
        certificates = Certificates.load(self.folder / party)
        return LabelClient(f"127.0.0.1:{self.server.port}", party, agreed, self.terms, certificates=certificates)

    def label(self, steps: int) -> threading.Thread:
        def serve() -> None:
            while True:
                said = self.desk.gather()
                self.desk.start(dict.fromkeys(said, Message(step=7)))
                try:
                    self.desk.answer_all(doubling(tuple(said), steps))
                    return
                except PeerRestarted:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        return thread


@pytest.fixture
def scene(certificates: Path) -> Iterator[Scene]:
    made = Scene(certificates)
    yield made
    made.server.stop()


def share(value: float) -> Message:
    return Message(tensor=torch.full((3, 2), float(value)))


def test_answers_come_in_order_also_when_several_questions_are_under_way(scene: Scene) -> None:
    label = scene.label(20)
    with scene.client() as client:
        assert client.agree({"airport": Message()})["airport"].step == 7
        answers = [client.ask_ahead("Step", step, 0, {"airport": share(step)}) for step in range(20)]
        for step, answer in enumerate(answers):
            assert torch.equal(answer()["airport"].tensor, torch.full((3, 2), 2.0 * step))
    label.join()


def test_two_parties_are_answered_together(certificates: Path) -> None:
    scene = Scene(certificates, ("airport", "bank"))
    label, found = scene.label(5), {}

    def ask(party: str, value: float) -> None:
        with scene.client(party) as client:
            client.agree({party: Message()})
            found[party] = [client.ask("Step", step, 0, {party: share(value)})[party].tensor for step in range(5)]

    threads = [threading.Thread(target=ask, args=each) for each in (("airport", 1.0), ("bank", 2.0))]
    for thread in threads:
        thread.start()
    for thread in (*threads, label):
        thread.join()
    scene.server.stop()
    for answers in found.values():
        assert all(torch.equal(answer, torch.full((3, 2), 6.0)) for answer in answers)


def test_a_process_that_comes_again_ends_the_session_and_all_begin_anew(scene: Scene) -> None:
    label = scene.label(3)
    with scene.client() as first, scene.client() as second:
        first.agree({"airport": Message()})
        first.ask("Step", 0, 0, {"airport": share(1)})
        second.agree({"airport": Message()})
        with pytest.raises(Refused) as refused:
            first.ask("Step", 1, 0, {"airport": share(1)})
        assert refused.value.code == "taken-over"
        for step in range(3):
            second.ask("Step", step, 0, {"airport": share(1)})
    label.join()


def test_another_agreement_is_refused_and_names_the_difference(scene: Scene) -> None:
    other = Agreement({"protocol version": "1", "digest of the job": "xyz"}, b"digest of the ids")
    with scene.client(agreed=other) as client, pytest.raises(Refused, match="digest of the job differs"):
        client.agree({"airport": Message()})
    other = Agreement(dict(AGREED.fields), b"other ids")
    with scene.client(agreed=other) as client, pytest.raises(Refused, match="record ids differ"):
        client.agree({"airport": Message()})


@pytest.mark.parametrize(
    ("method", "step", "tensor"),
    [
        ("Step", 1, torch.ones(3, 2)),
        ("Step", 0, torch.ones(2, 2)),
        ("Step", 0, torch.ones(3, 3)),
        ("Step", 0, torch.full((3, 2), torch.nan)),
        ("Step", 0, None),
    ],
)
def test_what_is_not_due_ends_the_job_at_both_sides(scene: Scene, method: str, step: int, tensor: Any) -> None:
    failed: list[NetError] = []

    def serve() -> None:
        said = scene.desk.gather()
        scene.desk.start(dict.fromkeys(said, Message()))
        with pytest.raises(BadMessage) as bad:
            scene.desk.answer_all(doubling(tuple(said), 3))
        failed.append(bad.value)

    label = threading.Thread(target=serve)
    label.start()
    with scene.client() as client:
        client.agree({"airport": Message()})
        with pytest.raises(JobStopped):
            client.ask(method, step, 0, {"airport": Message(tensor=tensor)})
    label.join()
    assert failed[0].code == ("not-finite" if tensor is not None and tensor.isnan().any() else "bad-message")


def test_a_reason_to_stop_reaches_the_other_side_with_its_code(scene: Scene) -> None:
    def serve() -> None:
        said = scene.desk.gather()
        scene.desk.start(dict.fromkeys(said, Message()))
        with pytest.raises(JobStopped, match="feature party 'airport' stopped the job: no more") as stopped:
            scene.desk.answer_all(doubling(tuple(said), 3))
        assert stopped.value.code == "not-finite"

    label = threading.Thread(target=serve)
    label.start()
    with scene.client() as client:
        client.agree({"airport": Message()})
        client.stop(BadMessage("no more", "not-finite"))
        label.join()
        with pytest.raises(JobStopped):
            client.ask("Step", 0, 0, {"airport": share(1)})


def test_a_label_party_that_does_not_listen_is_missing(certificates: Path) -> None:
    terms = Terms(LIMITS, "float32", Patience(silence=1, wait=0.2))
    certificate = Certificates.load(certificates / "airport")
    with LabelClient("127.0.0.1:1", "airport", AGREED, terms, certificates=certificate) as client:
        with pytest.raises(PeerMissing, match="connection refused"):
            client.agree({"airport": Message()})


def test_a_party_that_does_not_come_is_missing(certificates: Path) -> None:
    scene = Scene(certificates, wait=0.2)
    with pytest.raises(PeerMissing, match="not connected yet"):
        scene.desk.gather()
    scene.server.stop()


def test_one_process_gives_the_same_answers() -> None:
    label = AtHome(lambda said: (said, doubling(("airport",), 3)), "float32")
    label.agree({"airport": Message()})
    for step in range(3):
        assert torch.equal(
            label.ask("Step", step, 0, {"airport": share(step)})["airport"].tensor, torch.full((3, 2), 2.0 * step)
        )
