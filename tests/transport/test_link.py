"""A link keeps its promise over connections that come and go; here a connection is two threads and no network."""

import functools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from tpsl.transport import wire_pb2
from tpsl.transport.channel import PeerMissing, PeerRestarted, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.frames import Limits, encode_control, encode_message
from tpsl.transport.link import Link, Patience, Terms, Watch
from tpsl.transport.messages import Bye, Finished, Message, Stop, TensorMessage

TestEmbeddings = partial(TensorMessage, "test embeddings")

LIMITS = Limits(rows=64, width=64, topics=("test embeddings",))
TIGHT = replace(LIMITS, window=1)
TENSOR = torch.zeros(64, 64)  # 16 KiB: two of them fill the smallest window
SOON = 10.0
PATIENCE = Patience()


def link_to(
    peer: str = "airport",
    patience: Patience = PATIENCE,
    limits: Limits = TIGHT,
    watch: Watch = lambda *news: None,
) -> Link:
    return Link(b"link", peer, Terms(limits, "float32", patience, watch))


class Two:
    """The two ends of a link in one process, with whatever was written between them."""

    def __init__(self, patience: Patience, window: int = 1) -> None:
        self.seen: list[tuple[str, str]] = []
        self.label, self.airport = (
            link_to(peer, patience, replace(LIMITS, window=window), lambda *news: self.seen.append(news))
            for peer in ("label", "airport")
        )
        self.written: dict[str, list[list[bytes]]] = {"label": [], "airport": []}
        self.threads: list[threading.Thread] = []

    def connect(self, lossy: Callable[[], bool] = lambda: False) -> None:
        """Attach both ends to a new connection, which breaks at the first frame for which `lossy` says so."""
        to_label, to_airport = self.label.attach(self.airport.received), self.airport.attach(self.label.received)
        for name, source, sink in (("label", to_label, to_airport), ("airport", to_airport, to_label)):
            frames: list[bytes] = []
            self.written[name].append(frames)

            def pump(source: Any = source, sink: Any = sink, frames: list[bytes] = frames) -> None:
                for frame in source.outgoing():
                    frames.append(frame)
                    if lossy() or not sink.incoming(frame):
                        break
                source.lose("cut")
                sink.lose("cut")

            self.threads.append(threading.Thread(target=pump, daemon=True))
            self.threads[-1].start()

    def cut(self) -> None:
        self.label.detach("cut")
        self.airport.detach("cut")
        self.join()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(SOON)
            assert not thread.is_alive()
        self.threads.clear()


@pytest.fixture
def make_two() -> Iterator[Callable[..., Two]]:
    made: list[Two] = []

    def make(patience: Patience | None = None, window: int = 1) -> Two:
        made.append(Two(patience or Patience(), window))
        return made[-1]

    yield make
    for two in made:
        two.cut()


def send(link: Link, message: Message) -> None:
    run_alone(link.send(message))


def receive(link: Link) -> Message:
    return run_alone(link.receive())


def in_thread(action: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + SOON
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


def heartbeat(acknowledged: int = 0) -> bytes:
    header = wire_pb2.Header(acknowledged=acknowledged)
    header.heartbeat.SetInParent()
    return encode_control(header)


def numbered(sequence: int, acknowledged: int = 0) -> bytes:
    return encode_message(Finished(sequence), sequence, acknowledged, "float32")


def test_messages_pass_both_ways(make_two: Callable[..., Two]) -> None:
    two = make_two()
    two.connect()
    send(two.label, Finished(1))
    send(two.airport, Finished(2))
    assert receive(two.airport) == Finished(1)
    assert receive(two.label) == Finished(2)
    assert two.seen == [("label", "connected"), ("airport", "connected")]


def test_what_is_sent_without_a_connection_arrives_when_there_is_one(make_two: Callable[..., Two]) -> None:
    two = make_two()
    for number in range(5):
        send(two.label, Finished(number))
    two.connect()
    assert [receive(two.airport) for _ in range(5)] == [Finished(number) for number in range(5)]


@pytest.mark.parametrize("seed", range(5))
def test_through_many_cuts_everything_arrives_once_and_in_order(make_two: Callable[..., Two], seed: int) -> None:
    two, count = make_two(window=1 << 16), 300
    chance = random.Random(seed)
    ends = {two.label: list[Message](), two.airport: list[Message]()}

    def talk(link: Link) -> None:
        for number in range(0, count, 3):
            for ahead in range(3):
                send(link, Finished(number + ahead))
            ends[link].extend(receive(link) for _ in range(3))

    talking = [in_thread(functools.partial(talk, link)) for link in ends]
    connections = 0
    while any(thread.is_alive() for thread in talking):
        two.connect(lossy=lambda: chance.random() < 0.03)
        connections += 1
        for thread in two.threads:
            while thread.is_alive() and any(talker.is_alive() for talker in talking):
                thread.join(0.01)
        two.cut()
    assert connections > 5
    for received in ends.values():
        assert received == [Finished(number) for number in range(count)]


def test_a_message_that_is_sent_again_is_the_same_bytes(make_two: Callable[..., Two]) -> None:
    two = make_two()
    send(two.label, TestEmbeddings(3, 4, torch.rand(64, 64, generator=torch.Generator().manual_seed(0))))
    two.connect(lossy=lambda: True)
    two.join()
    two.connect()
    receive(two.airport)
    first, second = (frames[0] for frames in two.written["label"])
    assert first == second
    assert len(first) > 16384


@pytest.fixture
def no_small_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is acknowledged but with a message, a heartbeat, or because the sender has to wait for it."""
    monkeypatch.setattr("tpsl.transport.link._ACKNOWLEDGE_SECONDS", 3600.0)


@pytest.mark.usefixtures("no_small_acknowledgements")
def test_a_sender_waits_for_acknowledgements_and_no_longer(make_two: Callable[..., Two]) -> None:
    two = make_two()
    sent = 0

    def stream() -> None:
        nonlocal sent
        for part in range(50):
            send(two.label, TestEmbeddings(0, part, TENSOR))
            sent += 1

    sender = in_thread(stream)
    assert eventually(lambda: sent > 0)
    sender.join(0.3)
    assert sent < 10
    two.connect()
    begun = time.monotonic()
    assert [receive(two.airport).part for _ in range(50)] == list(range(50))  # type: ignore[union-attr]
    sender.join(SOON)
    assert sent == 50
    # Had each acknowledgement waited for a heartbeat it would have taken 25 times 1 s.
    assert time.monotonic() - begun < 12


def test_a_full_inbox_stops_the_reader_and_is_not_taken_for_silence() -> None:
    link = link_to()
    connection = link.attach(0)
    taken = 0

    def read() -> None:
        nonlocal taken
        for sequence in range(1, 30):
            assert connection.incoming(encode_message(TestEmbeddings(0, 0, TENSOR), sequence, 0, "float32"))
            taken += 1

    reader = in_thread(read)
    assert eventually(lambda: connection.silent_since() is None)
    reader.join(0.3)
    assert 0 < taken < 10
    for _ in range(29):
        receive(link)
    reader.join(SOON)
    assert taken == 29
    assert connection.silent_since() is not None


def test_a_message_that_found_no_room_before_the_cut_is_sent_again() -> None:
    link = link_to()
    connection = link.attach(0)
    frames = [encode_message(TestEmbeddings(0, 0, TENSOR), sequence, 0, "float32") for sequence in range(1, 30)]
    reader = in_thread(lambda: [connection.incoming(frame) for frame in frames])
    assert eventually(lambda: connection.silent_since() is None)
    connection.lose("cut")
    reader.join(SOON)
    arrived = link.received
    assert 0 < arrived < 10
    for _ in range(arrived):
        receive(link)
    assert link.attach(0).incoming(frames[arrived])
    assert link.received == arrived + 1


def test_a_peer_that_does_not_come_back_is_missing(make_two: Callable[..., Two]) -> None:
    two = make_two(Patience(silence=1, wait=0.2))
    two.connect()
    two.airport.detach("not heard for 1 s")
    sentence = r"^feature party 'airport' was lost \(not heard for 1 s\) and did not come back within 0.2 s$"
    begun = time.monotonic()
    with pytest.raises(PeerMissing, match=sentence):
        receive(two.airport)
    assert 0.1 < time.monotonic() - begun < SOON
    with pytest.raises(PeerMissing, match=sentence):
        send(two.airport, Bye())
    with pytest.raises(PeerMissing, match=sentence):
        two.airport.attach(0)
    assert ("airport", "lost: not heard for 1 s; waiting up to 0.2 s for its return") in two.seen


def test_sending_to_a_lost_peer_waits_only_when_the_window_is_full() -> None:
    link = link_to(patience=Patience(silence=1, wait=0.2))
    send(link, TestEmbeddings(0, 0, TENSOR))
    with pytest.raises(PeerMissing):
        for part in range(10):
            send(link, TestEmbeddings(0, part, TENSOR))


def test_a_waiting_receive_wakes_when_the_link_fails(make_two: Callable[..., Two]) -> None:
    two = make_two()
    two.connect()
    threading.Timer(0.1, lambda: two.label.fail(PeerRestarted("label"))).start()
    with pytest.raises(PeerRestarted):
        receive(two.label)
    with pytest.raises(PeerRestarted):
        send(two.label, Bye())


def test_what_arrived_before_a_failure_is_still_delivered() -> None:
    link = link_to()
    connection = link.attach(0)
    for frame in (numbered(1), numbered(2), b"nonsense", numbered(3)):
        connection.incoming(frame)
    assert [receive(link), receive(link)] == [Finished(1), Finished(2)]
    with pytest.raises(BadMessage, match="feature party 'airport' sent 8 bytes that do not begin with a header"):
        receive(link)


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        ([numbered(2)], "sent message 2 where 1 was due"),
        ([numbered(1), numbered(1)], "sent message 1 where 2 was due"),
        ([numbered(1), numbered(3)], "sent message 3 where 2 was due"),
        ([heartbeat(2)], "acknowledges message 2, which it was not sent"),
        ([numbered(1, 2**60)], "acknowledges message 1152921504606846976, which it was not sent"),
        ([encode_control(wire_pb2.Header(hello=wire_pb2.Hello(party="airport")))], "sent a hello after the handshake"),
        ([heartbeat()] * 1100, "sends heartbeats without end"),
        ([encode_message(TestEmbeddings(0, 0, TENSOR), 1, 0, "bfloat16")], "another type of number than the job's"),
        ([encode_message(TestEmbeddings(0, 0, torch.zeros(65, 64)), 1, 0, "float32")], "of 65 rows of 64 numbers"),
        ([b""], "sent 0 bytes"),
    ],
)
def test_what_no_honest_peer_sends_fails_the_link(frames: list[bytes], sentence: str) -> None:
    link = link_to()
    send(link, Bye())
    connection = link.attach(0)
    writing = connection.outgoing()
    assert next(writing) == encode_message(Bye(), 1, 0, "float32")
    for frame in frames:
        connection.incoming(frame)
    for _ in range(link.received):
        receive(link)
    with pytest.raises(BadMessage, match=f"^feature party 'airport' .*{sentence}"):
        receive(link)
    # The connection stays to carry the reason to the peer.
    written: list[bytes] = []
    writer = in_thread(lambda: written.extend(writing))
    link.stop("a bad message", grace=SOON)
    writer.join(SOON)
    assert encode_message(Stop("a bad message"), 2, link.received, "float32") in written


def test_acknowledging_what_waits_in_the_window_is_no_acknowledgement() -> None:
    link = link_to()
    send(link, Bye())
    link.attach(0).incoming(heartbeat(1))
    with pytest.raises(BadMessage, match="acknowledges message 1, which it was not sent"):
        receive(link)


def test_heartbeats_that_arrive_all_at_once_after_a_long_hold_are_honest() -> None:
    link = link_to()
    connection = link.attach(0)
    assert all(connection.incoming(heartbeat()) for _ in range(900))
    assert connection.incoming(numbered(1))
    assert receive(link) == Finished(1)


@pytest.mark.parametrize("received", [3, 2**63])
def test_a_peer_cannot_go_on_after_what_was_never_sent(received: int) -> None:
    link = link_to()
    send(link, Bye())
    send(link, Bye())
    with pytest.raises(BadMessage, match=f"wants to go on after message {received}; 2 were sent and 0 acknowledged"):
        link.attach(received)


def test_a_peer_cannot_go_back_before_what_it_acknowledged() -> None:
    link = link_to()
    send(link, Bye())
    connection = link.attach(0)
    next(connection.outgoing())
    connection.incoming(heartbeat(1))
    with pytest.raises(BadMessage, match="wants to go on after message 0; 1 were sent and 1 acknowledged"):
        link.attach(0)


def test_a_replaced_connection_is_deaf_and_mute() -> None:
    link = link_to()
    old = link.attach(0)
    new = link.attach(0)
    assert not old.incoming(numbered(1))
    assert list(old.outgoing()) == []
    assert new.incoming(numbered(1))
    assert link.received == 1
    assert old.lost_because == "a new connection has replaced it"


def test_an_idle_connection_carries_heartbeats(make_two: Callable[..., Two]) -> None:
    two = make_two(Patience(silence=0.5))
    moments: dict[int, list[float]] = {}

    def note() -> bool:
        moments.setdefault(threading.get_ident(), []).append(time.monotonic())
        return False

    two.connect(lossy=note)
    assert eventually(lambda: len(moments) == 2 and all(len(written) >= 10 for written in list(moments.values())))
    for written in moments.values():  # A busy machine makes some of them late, and none early.
        assert 0.09 < min(after - before for before, after in pairwise(written)) < 0.2
    for name in ("label", "airport"):
        (frames,) = two.written[name]
        assert set(frames) == {heartbeat()}


@pytest.mark.usefixtures("no_small_acknowledgements")
def test_a_busy_connection_carries_no_more_than_its_messages(make_two: Callable[..., Two]) -> None:
    two = make_two()
    two.connect()
    for number in range(200):
        send(two.label, Finished(number))
        receive(two.airport)
        send(two.airport, Finished(number))
        receive(two.label)
    assert sum(len(frames) for name in two.written for frames in two.written[name]) < 410


def test_stopping_delivers_what_was_sent_the_reason_and_the_last_acknowledgement(
    make_two: Callable[..., Two], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpsl.transport.link._LONGEST_BETWEEN_HEARTBEATS", 3600.0)
    two = make_two(Patience(silence=3600.0))
    two.connect()
    send(two.airport, Bye())
    assert receive(two.label) == Bye()
    send(two.label, Finished(1))
    begun = time.monotonic()
    two.label.stop("no more", grace=SOON)
    two.airport.stop(None, grace=SOON)
    assert time.monotonic() - begun < SOON
    assert [receive(two.airport), receive(two.airport)] == [Finished(1), Stop("no more")]
    two.join()
    assert not [news for news in two.seen if news[1].startswith("lost: this side")]


def test_a_peer_that_leaves_after_its_goodbye_is_not_waited_for(make_two: Callable[..., Two]) -> None:
    two = make_two()
    two.connect()
    send(two.label, Bye())
    assert receive(two.airport) == Bye()
    two.label.stop(None, grace=SOON)
    two.join()
    assert two.seen[2:] == [("airport", "left: it has said goodbye")]


def test_stopping_waits_for_a_frozen_peer_only_for_its_grace() -> None:
    link = link_to()
    connection = link.attach(0)
    begun = time.monotonic()
    link.stop("no more", grace=0.3)
    assert 0.2 < time.monotonic() - begun < SOON
    assert connection.lost_at is not None


def test_stopping_delivers_through_a_reconnection(make_two: Callable[..., Two]) -> None:
    two = make_two()
    send(two.label, Bye())
    stopping = in_thread(lambda: two.label.stop(None, grace=SOON))
    time.sleep(0.1)
    two.connect()
    stopping.join(SOON)
    assert not stopping.is_alive()
    assert receive(two.airport) == Bye()


def test_traffic_counts_a_message_once_however_often_it_is_sent(make_two: Callable[..., Two]) -> None:
    two = make_two()
    send(two.label, TestEmbeddings(0, 0, TENSOR))
    for _ in range(3):
        two.connect(lossy=lambda: True)
        two.join()
    two.connect()
    receive(two.airport)
    assert (two.label.traffic.messages_sent, two.label.traffic.bytes_sent) == (1, 16384)
    assert (two.airport.traffic.messages_received, two.airport.traffic.bytes_received) == (1, 16384)


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
