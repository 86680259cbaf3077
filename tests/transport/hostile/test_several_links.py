"""A party of several workers, over TLS, one of which does on its own link what none does."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
from tpsl.transport.channel import JobStopped, PeerMissing, PeerRestarted, Refused, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.frames import encode_message
from tpsl.transport.link import Patience
from tpsl.transport.messages import Bye, Finished, Stop, TensorMessage
from tpsl.transport.peer_workers import workers_of

from tpsl.net.peers import MOST_WORKERS, WorkerPlace

CREW = b"started together"
NAMED = r"^worker 1 of 2 of feature party 'airport' "


def place(number: int, count: int = 2, crew: bytes = CREW) -> WorkerPlace:
    return WorkerPlace(number, count, crew)


@pytest.fixture
def workers(scene: Any) -> Any:
    """The scene with a server to which parties may come with several workers."""
    scene.server = scene.serving_both(most_workers=MOST_WORKERS, patience=Patience(silence=60, wait=20))
    return scene


def come(scene: Any, *numbers: int, count: int = 2, party: str = "airport") -> list[Any]:
    """Let workers of a party come, each by a stream on which anything can be written."""
    streams = [scene.raw(party) for _ in numbers]
    for stream, number in zip(streams, numbers, strict=True):
        stream.shake_hands(party, worker=place(number, count))
    return streams


def receive(channel: Any) -> Any:
    return run_alone(channel.receive())


IMPOSSIBLE = {
    "a number beyond the count": (place(2), "has 2 workers, and this is number 2, from 0"),
    "the largest number": (place((1 << 32) - 1), "has 2 workers, and this is number 4294967295, from 0"),
    "no workers": (place(0, 0), "has 0 workers, not 1 to 256"),
    "too many workers": (place(1, 257), "has 257 workers, not 1 to 256"),
    "another count than its sister": (place(1, 3), "has 2 workers, but worker 1 of 3 has come"),
    "the only one beside its sister": (place(0, 1), "has 2 workers, but worker 0 of 1 has come"),
    "of no crew": (place(1, crew=b""), "sent a worker without the name of its crew"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_worker_that_cannot_be_is_refused_and_its_sister_does_not_notice(
    workers: Any, frames: Any, name: str
) -> None:
    worker, sentence = IMPOSSIBLE[name]
    (first,) = come(workers, 0)
    with pytest.raises(Refused, match=f"^the label party refuses: feature party 'airport' {sentence}$"):
        workers.raw().shake_hands(worker=worker)
    assert workers.refuses("airport", sentence)
    first.write(frames.message(1))
    (second,) = come(workers, 1)
    second.write(frames.message(1))
    assert receive(workers.channel("airport")) == Finished(1)


def test_another_party_cannot_come_as_a_worker_of_this_one(workers: Any) -> None:
    (first,) = come(workers, 0)
    with pytest.raises(Refused, match="the certificate is that of 'bank', not of 'airport'"):
        workers.raw("bank").shake_hands("airport", worker=place(1))
    (bank,) = come(workers, 1, party="bank")  # of the same name: crews of two parties have nothing in common
    assert first.read().WhichOneof("body") == bank.read().WhichOneof("body") == "heartbeat"


def test_a_worker_that_knows_the_link_of_its_sister_gets_one_of_its_own(workers: Any, frames: Any) -> None:
    (first,) = come(workers, 0)
    second = workers.raw()
    second.shake_hands(worker=place(1), link=first.link, received=7)
    assert second.link != first.link
    for stream in (first, second):
        stream.write(frames.message(1))
    assert receive(workers.channel("airport")) == Finished(1)


def test_a_number_twice_is_a_restart_and_the_last_one_counts(workers: Any, frames: Any) -> None:
    first, second = come(workers, 0, 1)
    links = workers_of(workers.channel("airport"))
    (again,) = come(workers, 1)
    second.ending()
    with pytest.raises(PeerRestarted, match=r"^airport was restarted$"):
        receive(links[1])
    for stream in (first, again):
        stream.write(frames.message(1))
    assert receive(workers.channel("airport")) == Finished(1)
    with pytest.raises(Refused, match="another process of feature party 'airport' has taken its place"):
        workers.raw().shake_hands(worker=place(1), link=second.link)
    first.write(frames.message(2))
    assert receive(workers_of(workers.channel("airport"))[0]) == Finished(2)


def test_a_worker_cannot_go_on_after_what_it_was_not_sent(workers: Any, frames: Any) -> None:
    _, second = come(workers, 0, 1)
    with pytest.raises(
        Refused, match="worker 1 of 2 of feature party 'airport' wants to go on after message 5; 0 were"
    ):
        workers.raw().shake_hands(worker=place(1), link=second.link, received=5)
    again = workers.raw()
    again.shake_hands(worker=place(1), link=second.link)
    assert again.link == second.link
    again.write(frames.message(1))
    assert receive(workers_of(workers.channel("airport"))[1]) == Finished(1)


HUGE = TensorMessage("embeddings", 0, 1, torch.zeros(513, 256))
BAD = {
    "random bytes": (lambda frames: b"random", "sent 6 bytes that do not begin with a header"),
    "the second frame of its sister": (lambda frames: frames.message(2), "sent message 2 where 1 was due"),
    "a second hello": (lambda frames: frames.hello(), "sent a hello after the handshake"),
    "what its sister was sent": (lambda frames: frames.heartbeat(1), "acknowledges message 1, which it was not sent"),
    "a huge size": (
        lambda frames: encode_message(HUGE, 1, 0, "float32"),
        "sent embeddings of 513 rows of 256 numbers, more than 512 rows of 256",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_of_one_worker_stops_the_job_wherever_the_role_waits(workers: Any, frames: Any, name: str) -> None:
    bad, sentence = BAD[name]
    first, second = come(workers, 0, 1)
    links = workers_of(workers.channel("airport"))
    first.write(frames.message(1))
    assert receive(links[0]) == Finished(1)
    with ThreadPoolExecutor(1) as role:
        waiting = role.submit(receive, links[0])  # which lives, and has nothing to say
        second.write(bad(frames))
        with pytest.raises(BadMessage, match=NAMED + sentence):
            waiting.result()
    with pytest.raises(BadMessage, match=NAMED + sentence):
        workers.channel("airport")
    with pytest.raises(Refused, match=f"the job was stopped: worker 1 of 2 of feature party 'airport' {sentence}"):
        come(workers, 0)
    workers.server.stop("it is over")
    while (header := first.read()).WhichOneof("body") != "stop":
        pass
    assert header.stop.reason == "it is over"


def test_one_worker_stops_the_job_wherever_the_role_waits(workers: Any, frames: Any) -> None:
    _, second = come(workers, 0, 1)
    links = workers_of(workers.channel("airport"))
    with ThreadPoolExecutor(1) as role:
        waiting = role.submit(receive, links[0])
        second.write(frames.message(1, Stop("no more space")))
        with pytest.raises(JobStopped, match=NAMED + "stopped the job: no more space$"):
            waiting.result()
    assert receive(links[1]) == Stop("no more space")


def test_a_silent_worker_is_lost_while_its_sister_goes_on(scene: Any) -> None:
    scene.server = scene.serving_both(most_workers=MOST_WORKERS)
    first = run_alone(scene.client(scene.server.port, worker=place(0)).gather())["label"]
    (second,) = come(scene, 1)
    links, sent = workers_of(scene.channel("airport")), 0
    while ("airport", "lost: not heard for 1 s; waiting up to 20 s for its return") not in scene.seen:
        sent += 1
        run_alone(first.send(Finished(sent)))
        assert receive(links[0]) == Finished(sent)
        time.sleep(0.1)
    second.ending()
    assert links[1].failure is None  # it may come back


def test_who_waits_for_a_worker_names_it(scene: Any) -> None:
    scene.server = scene.serving_both(most_workers=MOST_WORKERS, patience=Patience(silence=5, wait=0.1))
    come(scene, 0, 2, count=3)
    with pytest.raises(PeerMissing, match=r"^worker 1 of 3 of feature party 'airport' did not come within 0.1 s \("):
        scene.channel("airport")


def test_an_oversized_message_of_one_worker_leaves_its_sister_alone(workers: Any, frames: Any) -> None:
    first, second = come(workers, 0, 1)
    links = workers_of(workers.channel("airport"))
    second.write(frames.message(1, TensorMessage("embeddings", 0, 0, torch.zeros(4096, 256))))
    assert second.ending().startswith("RESOURCE_EXHAUSTED")
    first.write(frames.message(1))
    assert receive(links[0]) == Finished(1)


def test_goodbye_on_one_link_is_not_that_of_the_party(workers: Any, frames: Any) -> None:
    first, second = come(workers, 0, 1)
    first.write(frames.message(1, Bye()))
    second.write(frames.message(1, Finished(3)))
    with pytest.raises(BadMessage, match=r"^the workers of airport do not say the same$"):
        receive(workers.channel("airport"))


def test_unfinished_handshakes_of_a_party_of_workers_keep_nobody_out(scene: Any, frames: Any) -> None:
    scene.server = scene.serving_both(most_workers=2)
    come(scene, 0, 1)
    for stream in [scene.raw() for _ in range(30)]:  # more than the server has threads for
        stream.write(frames.hello())
        with suppress(Exception):  # those that have been there longest are ended
            stream.read()
    assert scene.serves("bank")
