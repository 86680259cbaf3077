"""Workers of two parties over gRPC: who meets whom, who is refused, and what a start of new workers does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
from tpsl.transport.channel import Channel, JobStopped, PeerRestarted, Refused, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.frames import Limits
from tpsl.transport.handshake import Agreement
from tpsl.transport.label_server import LabelServer
from tpsl.transport.label_workers import LabelWorkers
from tpsl.transport.link import Patience, Terms
from tpsl.transport.messages import Bye, Finished, Rewind, Stop, TensorMessage
from tpsl.transport.peer_workers import receive_from_any, to_part, worker_count, workers_of

from tpsl.net.peers import MOST_WORKERS, WorkerPlace

SAME = Agreement({"job": "workers"}, b"ids")
OLD, NEW = b"old crew", b"new crew"


def terms(number: int = 0, count: int = 1, crew: bytes = OLD, most: int = MOST_WORKERS) -> Terms:
    place = WorkerPlace(number, count, crew)
    return Terms(Limits(8, 8), "float32", Patience(5, 20), lambda peer, sentence: None, worker=place, most_workers=most)


Listen, Connect = Callable[[Terms], LabelServer], Callable[..., LabelWorkers]


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def listen(closing: ExitStack) -> Listen:
    """Start a worker of the label party."""

    def start(own: Terms) -> LabelServer:
        return closing.enter_context(LabelServer("127.0.0.1:0", ["airport"], SAME, own, credentials=None))

    return start


@pytest.fixture
def connect(closing: ExitStack) -> Connect:
    """Start a worker of a feature party that knows these workers of the label party, in order."""

    def start(own: Terms, *servers: LabelServer) -> LabelWorkers:
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        return closing.enter_context(LabelWorkers(addresses, "airport", SAME, own, credentials=None))

    return start


def gathered(meeting: Any) -> Channel:
    (channel,) = run_alone(meeting.gather()).values()
    return channel


def sent(channel: Channel, *messages: Any) -> None:
    for message in messages:
        run_alone(channel.send(message))


def test_workers_meet_that_have_parts_in_common(listen: Listen, connect: Connect) -> None:
    servers = [listen(terms(number, 2)) for number in range(2)]
    clients = [connect(terms(number, 4), *servers) for number in range(4)]
    for number, client in enumerate(clients):
        label = gathered(client)
        assert worker_count(label) == 2 and list(workers_of(label)) == [number % 2]
    for number, server in enumerate(servers):
        airport = gathered(server)
        assert worker_count(airport) == 4 and list(workers_of(airport)) == [number, number + 2]
        for part in range(number, 12, 2):
            sent(to_part(airport, part), Finished(part))
    for number, client in enumerate(clients):
        label = gathered(client)
        found = [run_alone(to_part(label, part).receive()) for part in range(number, 12, 4)]
        assert found == [Finished(part) for part in range(number, 12, 4)]


def test_a_party_of_one_worker_meets_all_of_the_other(listen: Listen, connect: Connect) -> None:
    server = listen(terms())
    clients = [connect(terms(number, 3), server) for number in range(3)]
    airport = gathered(server)
    assert list(workers_of(airport)) == [0, 1, 2]
    sent(airport, Rewind(1))
    labels = [gathered(client) for client in clients]
    assert [run_alone(label.receive()) for label in labels] == [Rewind(1)] * 3
    assert [worker_count(label) for label in labels] == [1] * 3
    sent(labels[2], Finished(7))
    assert run_alone(receive_from_any(airport)) == (2, Finished(7))
    assert airport.traffic.messages_sent == 3 and airport.traffic.messages_received == 1


def test_all_workers_must_say_the_same(listen: Listen, connect: Connect) -> None:
    server = listen(terms())
    labels = [gathered(connect(terms(number, 2), server)) for number in range(2)]
    airport = gathered(server)
    for label in labels:
        sent(label, Finished(3))
    assert run_alone(airport.receive()) == Finished(3)
    sent(labels[0], Finished(3)), sent(labels[1], Finished(4))
    with pytest.raises(BadMessage, match=r"^the workers of airport do not say the same$"):
        run_alone(airport.receive())
    sent(labels[0], Bye())
    links: dict[int, Any] = workers_of(airport)
    while not links[0].has_news():  # what has come before a stop is still delivered
        time.sleep(0.01)
    sent(labels[1], Stop("no more space"))
    assert run_alone(airport.receive()) == Stop("no more space")


def test_one_worker_of_the_label_party_stops_the_job_wherever_the_role_waits(listen: Listen, connect: Connect) -> None:
    servers = [listen(terms(number, 2)) for number in range(2)]
    label = gathered(connect(terms(), *servers))
    with ThreadPoolExecutor(1) as role:
        waiting = role.submit(run_alone, to_part(label, 0).receive())
        sent(gathered(servers[1]), Stop("a bad message"))
        with pytest.raises(JobStopped, match=r"^worker 1 of 2 of the label party stopped the job: a bad message$"):
            waiting.result()
    assert run_alone(to_part(label, 1).receive()) == Stop("a bad message")


def test_workers_of_a_peer_share_one_window(listen: Listen, connect: Connect) -> None:
    tight = Limits(64, 64, ("embeddings",), window=1)  # bytes; at least two of the largest messages, some 160 KiB
    server = listen(replace(terms(), limits=tight))
    labels = [gathered(connect(replace(terms(number, 3), limits=tight), server)) for number in range(3)]
    links: dict[int, Any] = workers_of(gathered(server))
    messages = [TensorMessage("embeddings", 0, part, torch.zeros(64, 64)) for part in range(8)]  # 17 KiB each
    for label in labels:
        sent(label, *messages)
    arrived, until = -1, time.monotonic() + 60
    while arrived != (now := sum(link.received for link in links.values())) or (now < 8 and time.monotonic() < until):
        arrived = now
        time.sleep(0.3)
    assert 8 <= arrived <= 9 + 3
    for link in reversed(links.values()):  # as a role that waits for the last one first
        assert [run_alone(link.receive()).part for _ in messages] == list(range(8))


REFUSED = {
    "has no part in common": (terms(1, 2), terms(0, 2), "worker 1 of 2 of .* has nothing to do with worker 0 of 2 of"),
    "several where one is due": (terms(0, 2), terms(most=1), "comes with 2 workers; here it may have one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_worker_that_is_not_due_is_refused(listen: Listen, closing: ExitStack, name: str) -> None:
    own, label, sentence = REFUSED[name]
    expected = label.worker.number, label.worker.count
    address = f"127.0.0.1:{listen(label).port}"
    client = FeatureClient(address, "airport", SAME, own, credentials=None, expected=expected)
    closing.enter_context(client)
    with pytest.raises(Refused, match=sentence):
        run_alone(client.gather())


def test_workers_that_were_started_together_have_one_number_of_workers(listen: Listen, connect: Connect) -> None:
    server = listen(terms())
    gathered(connect(terms(0, 2), server))
    with pytest.raises(Refused, match="feature party 'airport' has 2 workers, but worker 1 of 3 has come"):
        gathered(connect(terms(1, 3), server))


def test_all_addresses_of_the_label_party_are_named_in_order(listen: Listen, connect: Connect) -> None:
    first, second = (listen(terms(number, 2)) for number in range(2))
    with pytest.raises(Refused, match=r"has 2 worker\(s\), but 1 address\(es\) to connect to were named"):
        gathered(connect(terms(), first))
    with pytest.raises(Refused, match=r"listens worker 1 of 2 of the label party, and worker 0 was expected"):
        gathered(connect(terms(crew=NEW), second, first))


def test_new_workers_take_the_place_of_all_old_ones(listen: Listen, connect: Connect) -> None:
    server = listen(terms())
    before = [gathered(connect(terms(number, 2), server)) for number in range(2)]
    airport = gathered(server)
    newcomer = connect(terms(0, 3, NEW), server)
    gathered(newcomer)
    with pytest.raises(PeerRestarted):
        run_alone(airport.receive())
    for label in before:
        with pytest.raises(Refused, match="another process of feature party 'airport' has taken its place"):
            run_alone(label.receive())
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(gathered, server)
        connect(terms(1, 3, NEW), server)
        time.sleep(0.2)
        assert not waiting.done()  # one of three is missing
        connect(terms(2, 3, NEW), server)
        assert list(workers_of(waiting.result(60))) == [0, 1, 2]


def test_a_worker_waits_until_the_whole_label_party_is_new(
    listen: Listen, connect: Connect, closing: ExitStack
) -> None:
    lasting = listen(terms(1, 2))
    with ExitStack() as ending:
        first = ending.enter_context(LabelServer("127.0.0.1:0", ["airport"], SAME, terms(0, 2), credentials=None))
        address = f"127.0.0.1:{first.port}"
        client = connect(terms(), first, lasting)
        label = gathered(client)
    restarted = LabelServer(address, ["airport"], SAME, terms(0, 2, NEW), credentials=None)
    closing.enter_context(restarted)
    with pytest.raises(PeerRestarted):
        run_alone(to_part(label, 0).receive())
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(gathered, client)
        time.sleep(0.3)
        assert not waiting.done()  # worker 1 is still the old one
        lasting.stop(None)
        closing.enter_context(
            LabelServer(f"127.0.0.1:{lasting.port}", ["airport"], SAME, terms(1, 2, NEW), credentials=None)
        )
        assert {link.worker.crew for link in waiting.result(60).links.values()} == {NEW}
