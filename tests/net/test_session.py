"""Honest parties over gRPC with mutual TLS: in order, pipelined, several at once, restarted, refused, told why."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import pytest
import torch
from tests.net.scene import AGREED, LIMITS, Scene, doubling, eventually, share
from tests.ports import free_port

from tpsl.net.agreement import Agreement
from tpsl.net.asking import AtHome
from tpsl.net.client import LabelClient
from tpsl.net.connection import Patience, Terms
from tpsl.net.failures import BadMessage, JobStopped, PeerMissing, PeerRestarted, Refused
from tpsl.net.messages import Message

Make = Callable[..., Scene]
OTHER_JOB = Agreement({**AGREED.fields, "digest of the job": "xyz"}, AGREED.ids)


def steps(client: LabelClient, party: str, numbers: range, value: float = 1.0) -> list[float]:
    """Ask one step after the other; return one number of each answer."""
    answers = [client.ask("Step", step, 0, {party: share(value)})[party] for step in numbers]
    return [float(answer.tensor[2, 1]) for answer in answers]


@pytest.mark.parametrize("certified", [True, False])
def test_answers_come_in_order_also_when_several_questions_are_under_way(make_scene: Make, certified: bool) -> None:
    scene = make_scene("airport", certified=certified)
    label = scene.label(20)
    client = scene.client()
    assert client.agree({"airport": Message()})["airport"].step == 7
    answers = [client.ask_ahead("Step", step, 0, {"airport": share(step)}) for step in range(20)]
    for step, answer in enumerate(answers):
        assert torch.equal(answer()["airport"].tensor, torch.full((3, 2), 2.0 * step))
    label.result()


def test_two_parties_are_answered_together(make_scene: Make) -> None:
    scene = make_scene("airport", "bank")
    label = scene.label(5)
    asking = {party: scene.pool.submit(lambda p: steps(scene.asking(p), p, range(5), len(p)), party)
              for party in ("airport", "bank")}  # fmt: skip
    assert {tuple(each.result()) for each in asking.values()} == {(2.0 * len("airport" + "bank"),) * 5}
    label.result()
    assert [vars(caller.traffic) for caller in scene.desk._callers.values()] == [
        {"bytes_sent": 5 * 24, "bytes_received": 5 * 24}
    ] * 2


def test_one_process_gives_the_same_answers() -> None:
    label = AtHome(lambda said: (said, doubling(("airport",), 3)), "float32")
    label.agree({"airport": Message()})
    for step in range(3):
        answer = label.ask("Step", step, 0, {"airport": share(step)})["airport"]
        assert torch.equal(answer.tensor, torch.full((3, 2), 2.0 * step))


def test_a_feature_party_may_come_first(make_scene: Make) -> None:
    port = free_port()
    first = make_scene()
    waiting = first.pool.submit(
        first.asking, port=port, terms=replace(first.terms, watch=lambda *n: first.seen.append(n))
    )
    assert first.sees("label", "connection refused")
    scene = make_scene(address=f"127.0.0.1:{port}")
    label = scene.label(1)
    assert steps(waiting.result(), "airport", range(1)) == [2.0]
    label.result()
    assert len([state for state in first.states("label") if "connection refused" in state]) == 1, "told once"


def test_a_process_that_comes_again_ends_the_session_and_all_begin_anew(make_scene: Make) -> None:
    scene = make_scene("airport", "bank")
    label = scene.label(3)
    bank = scene.pool.submit(scene.asking, "bank")
    first = scene.asking()
    answers = scene.pool.submit(steps, bank.result(), "bank", range(3))
    assert steps(first, "airport", range(1)) == [4.0]
    again = scene.pool.submit(scene.asking)
    with pytest.raises(PeerRestarted):
        answers.result()
    bank.result().agree({"bank": Message()})
    answers = scene.pool.submit(steps, bank.result(), "bank", range(3), 5.0)
    with pytest.raises(PeerRestarted):
        steps(first, "airport", range(1, 2))
    with pytest.raises(Refused) as refused:
        first.agree({"airport": Message()})
    assert refused.value.code == "taken-over"
    assert steps(again.result(), "airport", range(3)) == answers.result() == [12.0] * 3
    label.result()
    assert scene.restarts == 1


def test_a_label_party_that_comes_again_is_noticed_and_may_have_another_job(make_scene: Make) -> None:
    first = make_scene()
    first.label(3)
    client = first.asking()
    assert steps(client, "airport", range(1)) == [2.0]
    first.server.stop()
    second = make_scene(address=f"127.0.0.1:{first.port}")
    label = second.label(2)
    with pytest.raises(PeerRestarted):
        steps(client, "airport", range(1, 2))
    client.agree({"airport": Message()})
    assert steps(client, "airport", range(2)) == [2.0] * 2
    label.result()
    second.server.stop()
    make_scene(address=f"127.0.0.1:{first.port}", agreed=OTHER_JOB).label(2)
    with pytest.raises(PeerRestarted):
        steps(client, "airport", range(2, 3))
    with pytest.raises(Refused, match="digest of the job differs"):
        client.agree({"airport": Message()})


@pytest.mark.parametrize(
    ("agreed", "sentence"),
    [
        (OTHER_JOB, "digest of the job differs: .*'abc'.*'xyz'"),
        (Agreement({**AGREED.fields, "protocol version": "2"}, AGREED.ids), "protocol version differs: .*'1'.*'2'"),
        (Agreement(AGREED.fields, b"other ids"), "record ids differ"),
    ],
)
def test_another_agreement_is_refused_once_in_the_log_and_the_right_one_is_still_welcome(
    make_scene: Make, agreed: Agreement, sentence: str
) -> None:
    scene = make_scene()
    for _ in range(3):
        with pytest.raises(Refused, match=f"^the label party refuses: .*{sentence}") as refused:
            scene.asking(agreed=agreed)
        assert refused.value.code == "refused"
    assert [state.partition(":")[0] for state in scene.states("airport")] == ["refused"]
    assert scene.serves("airport")


def test_who_is_ahead_waits_until_the_label_party_is_there_too(make_scene: Make) -> None:
    def step(number: int) -> Agreement:
        fields = {"configuration": f"{number} of 2", "digest of the job": str(number)}
        return Agreement(fields, b"digest of the ids", passing=frozenset({"configuration"}))

    first = make_scene(agreed=step(1))
    ahead = first.pool.submit(first.asking, agreed=step(2))
    assert first.sees("airport", "waiting: configuration differs")
    assert not [state for state in first.states("airport") if "refused" in state]
    first.server.stop()
    second = make_scene(address=f"127.0.0.1:{first.port}", agreed=step(2))
    label = second.label(1)
    assert steps(ahead.result(), "airport", range(1)) == [2.0]
    label.result()


def test_who_comes_for_the_next_job_waits_until_this_one_has_ended(make_scene: Make) -> None:
    scene = make_scene()
    label = scene.label(1)
    gone = scene.asking()
    scene.desk.delivered = lambda ticket: None  # type: ignore[method-assign]  # so the last answer stays under way
    steps(gone, "airport", range(1))
    label.result()
    ending = scene.pool.submit(scene.server.stop)
    assert eventually(lambda: scene.desk.is_ending)
    early = scene.pool.submit(scene.asking, agreed=OTHER_JOB)
    assert scene.sees("airport", "waiting: the label party is ending the job")
    ending.result()
    after = make_scene(address=f"127.0.0.1:{scene.port}", agreed=OTHER_JOB)
    label = after.label(1)
    assert steps(early.result(), "airport", range(1)) == [2.0]
    label.result()


def test_a_reason_to_stop_reaches_every_party_with_its_code(make_scene: Make) -> None:
    scene = make_scene("airport", "bank", "weather")
    label = scene.label(3)
    coming = {party: scene.pool.submit(scene.asking, party) for party in scene.parties}
    clients = {party: client.result() for party, client in coming.items()}
    waiting = scene.pool.submit(steps, clients["bank"], "bank", range(1))
    begun = time.monotonic()
    clients["airport"].stop(BadMessage("no more", "not-finite"))
    with pytest.raises(JobStopped, match="feature party 'airport' stopped the job: no more") as stopped:
        waiting.result()
    assert stopped.value.code == "not-finite"
    with pytest.raises(JobStopped) as stopped:  # it was busy with itself, and asks now
        steps(clients["weather"], "weather", range(1))
    assert stopped.value.code == "not-finite"
    with pytest.raises(JobStopped) as stopped:
        label.result()
    assert stopped.value.code == "not-finite"
    assert time.monotonic() - begun < 1.5, "when all have been told nobody is waited for"


def test_a_party_that_is_about_to_agree_is_told_too(make_scene: Make) -> None:
    scene = make_scene("airport", "bank")
    label = scene.label(3)
    scene.pool.submit(scene.asking, "bank")
    airport = scene.client()
    assert eventually(lambda: scene.desk._callers["bank"].agreed is not None)
    airport.agree({"airport": Message()})
    again = scene.pool.submit(scene.asking, "bank")  # another process, which waits for airport
    assert eventually(lambda: scene.restarts == 1)
    airport.stop("no disk")
    with pytest.raises(JobStopped, match="no disk") as stopped:
        label.result()
    assert stopped.value.code == "stopped"
    with pytest.raises(JobStopped, match="no disk"):
        again.result()


def test_a_label_party_that_does_not_listen_is_missing(make_scene: Make) -> None:
    scene, port = make_scene(), free_port()
    terms = replace(scene.terms, patience=Patience(silence=1, wait=0.2))
    with pytest.raises(PeerMissing, match="connection refused"):
        scene.asking(port=port, terms=terms)


def test_a_party_that_does_not_come_is_missing(make_scene: Make) -> None:
    scene = make_scene("airport", "bank", wait=0.3)
    airport = scene.pool.submit(scene.asking)
    with pytest.raises(PeerMissing, match=r"^feature party 'bank' did not come within 0\.3 s \(not connected yet\)$"):
        scene.label().result()
    assert scene.states("bank") == ["waiting: not connected yet"]
    with pytest.raises(JobStopped) as stopped:
        airport.result()
    assert stopped.value.code == "missing"


@pytest.mark.parametrize(
    ("silence", "wait", "sentence"),
    [
        (0.1, 1, "silence: 0.1 s is too short"),
        (float("nan"), 1, "silence: nan"),
        (15, -1, "wait: -1 is not"),
        (15, float("nan"), "wait: nan"),
    ],
)
def test_patience_is_a_number_of_seconds(silence: float, wait: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Patience(silence, wait)


def test_ctrl_c_in_the_middle_of_a_call_does_not_keep_the_client_open(make_scene: Make) -> None:
    """gRPC has counted the call, but no thread waits for its answer: to close the channel would take for ever."""
    scene = make_scene(certified=False, wait=1, silence=1)
    label = scene.label(2)

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_name == "_run_channel_spin_thread":
            raise KeyboardInterrupt

    begun = time.monotonic()
    address = f"127.0.0.1:{scene.port}"
    with (
        pytest.raises(KeyboardInterrupt),
        LabelClient(address, "airport", AGREED, scene.terms, certificates=None) as client,
    ):
        client.agree({"airport": Message()})
        sys.settrace(interrupt)
        try:
            client.ask_ahead("Step", 0, 0, {"airport": share(1)})
        finally:
            sys.settrace(None)
    assert time.monotonic() - begun < 30
    assert isinstance(label.exception(), PeerMissing)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:7443", "label.example:7443", "[::]:7443", "127.0.0.1"])
def test_without_certificates_nothing_leaves_this_machine(make_scene: Make, address: str) -> None:
    with pytest.raises(ValueError, match=r"only a loopback address|is not an address HOST:PORT"):
        make_scene(certified=False, address=address)
    with pytest.raises(ValueError, match=r"only a loopback address|is not an address HOST:PORT"):
        LabelClient(address, "airport", AGREED, Terms(LIMITS, "float32"), certificates=None)


def test_an_address_that_is_taken_or_not_ours_is_an_error(make_scene: Make) -> None:
    port = make_scene().port
    for address in (f"127.0.0.1:{port}", "192.0.2.1:7443"):
        with pytest.raises(ValueError, match=f"cannot listen at {address}: "):
            make_scene(address=address)
