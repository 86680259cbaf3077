"""Two parties over real gRPC with mutual TLS on loopback, through a network and processes that fail."""

import contextlib
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ports import free_port
from tpsl.transport.channel import Channel, PeerMissing, PeerRestarted, Refused, run_alone
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.frames import Limits
from tpsl.transport.handshake import Agreement
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Terms
from tpsl.transport.messages import Bye, Finished, Message, Rewind, Stop, TensorMessage

from tpsl.net.credentials import Certificates

Embeddings = partial(TensorMessage, "embeddings")

LIMITS = Limits(rows=512, width=256, topics=("embeddings",))
AGREED = Agreement({"protocol version": "1", "digest of the job": "abc"}, b"digest of the ids")
PATIENCE = Patience(silence=2, wait=20)
SOON = 30.0
CUTS = int(os.environ.get("TPSL_DRILL_CUTS", "12"))


class Net:
    """Makes servers and clients with real certificates, keeps what they see, and closes them in the end."""

    def __init__(self, certificates: Path) -> None:
        self.certificates = certificates
        self.open = contextlib.ExitStack()
        self.seen: list[tuple[str, str]] = []

    def server(self, *parties: str, **changes: Any) -> LabelServer:
        address = changes.pop("address", "127.0.0.1:0")
        own = Certificates.load(self.certificates / "label").server()
        agreed, terms, credentials = self.given(own, **changes)
        return self.open.enter_context(
            LabelServer(address, parties or ("airport",), agreed, terms, credentials=credentials)
        )

    def client(self, port: int, party: str = "airport", **changes: Any) -> FeatureClient:
        own = Certificates.load(self.certificates / party).channel()
        agreed, terms, credentials = self.given(own, **changes)
        return self.open.enter_context(
            FeatureClient(f"127.0.0.1:{port}", party, agreed, terms, credentials=credentials)
        )

    def given(
        self, own: Any, agreed: Agreement = AGREED, patience: Patience = PATIENCE, **changes: Any
    ) -> tuple[Agreement, Terms, Any]:
        terms = Terms(LIMITS, "float32", patience, self._see)
        return agreed, terms, changes.get("credentials", own)

    def _see(self, peer: str, state: str) -> None:
        self.seen.append((peer, state))

    def states(self, peer: str) -> list[str]:
        return [state for seen, state in list(self.seen) if seen == peer]

    def sees(self, peer: str, part: str) -> bool:
        return eventually(lambda: any(part in state for state in self.states(peer)))

    def is_connected_again(self, times: int, talks: list[Future[Any]]) -> bool:
        """Whether the client was connected again more often than that, or all talks are over."""
        return self.states("label").count("connected again") > times or all(talk.done() for talk in talks)


@pytest.fixture
def net(certificates: Path) -> Iterator[Net]:
    before = threading.active_count()
    net = Net(certificates)
    with net.open:
        yield net
    # gRPC's own threads take a moment to end; none of ours may stay.
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("tpsl")])
    assert eventually(lambda: threading.active_count() <= before + 2)


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + SOON
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def send(channel: Channel, message: Message) -> None:
    run_alone(channel.send(message))


def receive(channel: Channel) -> Message:
    return run_alone(channel.receive())


def gathered(meeting: LabelServer | FeatureClient) -> dict[str, Channel]:
    return run_alone(meeting.gather())


def test_two_feature_parties_are_gathered_in_the_order_of_the_job(net: Net) -> None:
    server = net.server("bank", "airport")
    airport, bank = net.client(server.port, "airport"), net.client(server.port, "bank")
    channels = gathered(server)
    assert list(channels) == ["bank", "airport"]
    for name, client in (("airport", airport), ("bank", bank)):
        assert channels[name].peer == name
        send(channels[name], Finished(len(name)))
        label = gathered(client)["label"]
        assert label.peer == "label"
        assert receive(label) == Finished(len(name))
    assert gathered(server) == channels
    assert list(run_alone(server.gather(without=["bank"]))) == ["airport"]


def test_without_certificates_on_loopback(net: Net) -> None:
    server = net.server(credentials=None, address="localhost:0")
    client = net.client(server.port, credentials=None)
    send(gathered(client)["label"], Bye())
    assert receive(gathered(server)["airport"]) == Bye()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:7443", "label.example:7443", "[::]:7443", "127.0.0.1"])
def test_without_certificates_nothing_leaves_this_machine(net: Net, address: str) -> None:
    with pytest.raises(ValueError, match=r"only a loopback address|is not an address HOST:PORT"):
        net.server(credentials=None, address=address)
    with pytest.raises(ValueError, match=r"only a loopback address|is not an address HOST:PORT"):
        terms = Terms(LIMITS, "float32", PATIENCE, lambda *news: None)
        FeatureClient(address, "airport", AGREED, terms, credentials=None)


def test_a_second_server_on_one_port_is_an_error(net: Net) -> None:
    port = net.server().port
    with pytest.raises(ValueError, match=f"cannot listen at 127.0.0.1:{port}: address already in use"):
        net.server(address=f"127.0.0.1:{port}")


def test_an_address_that_is_not_ours_is_an_error(net: Net) -> None:
    with pytest.raises(ValueError, match=r"cannot listen at 192\.0\.2\.1:7443: cannot assign requested address"):
        net.server(address="192.0.2.1:7443")


def test_a_party_that_does_not_come_is_missing(net: Net) -> None:
    server = net.server("airport", "bank", patience=Patience(silence=2, wait=0.5))
    net.client(server.port, "airport")
    with pytest.raises(PeerMissing, match=r"^feature party 'bank' did not come within 0\.5 s \(not connected yet\)$"):
        gathered(server)
    assert "waiting: not connected yet" in net.states("bank")


def test_a_label_party_that_does_not_listen_is_missing(net: Net) -> None:
    port = free_port()
    client = net.client(port, patience=Patience(silence=2, wait=0.5))
    with pytest.raises(
        PeerMissing, match=rf"^the label party at 127\.0\.0\.1:{port} could not be reached within 0\.5 s: .*refused"
    ):
        gathered(client)
    # Told once, however often it was tried.
    assert len(net.states("label")) == 1
    assert net.states("label")[0] == f"waiting: nobody listens at 127.0.0.1:{port} yet: connection refused"


def test_a_connection_that_is_reset_says_nothing_about_the_certificate(net: Net) -> None:
    """A network that breaks looks like this; it is tried again, as often as it takes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = net.client(listener.getsockname()[1], patience=Patience(silence=2, wait=3))
        for begin in (b"", *[b"\x16"] * 4):
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(len(begin)) == begin
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        port = listener.getsockname()[1]
    server = net.server(address=f"127.0.0.1:{port}")
    send(gathered(client)["label"], Bye())
    assert receive(gathered(server)["airport"]) == Bye()


def test_a_feature_party_may_come_first(net: Net) -> None:
    port = free_port()
    client = net.client(port)
    assert net.sees("label", "onnection refused")
    server = net.server(address=f"127.0.0.1:{port}")
    send(gathered(client)["label"], Bye())
    assert receive(gathered(server)["airport"]) == Bye()


@pytest.mark.parametrize(
    ("agreed", "sentence"),
    [
        (Agreement({**AGREED.fields, "digest of the job": "x"}, AGREED.ids), "digest of the job differs: .*'abc'.*'x'"),
        (Agreement({**AGREED.fields, "protocol version": "2"}, AGREED.ids), "protocol version differs: .*'1'.*'2'"),
        (Agreement(AGREED.fields, b"other ids"), "the record ids differ"),
    ],
)
def test_another_agreement_is_refused_and_the_right_one_is_still_welcome(
    net: Net, agreed: Agreement, sentence: str
) -> None:
    server = net.server()
    with pytest.raises(Refused, match=f"^the label party refuses: {sentence}"):
        gathered(net.client(server.port, agreed=agreed))
    assert eventually(lambda: any(s.startswith("refused: ") for s in net.states("airport")))
    send(gathered(net.client(server.port))["label"], Bye())
    assert receive(gathered(server)["airport"]) == Bye()


def test_a_label_party_that_comes_back_with_another_job_is_refused(net: Net) -> None:
    first = net.server()
    client = net.client(first.port)
    label = gathered(client)["label"]
    first.stop(None)
    net.server(address=f"127.0.0.1:{first.port}", agreed=Agreement({**AGREED.fields, "digest of the job": "x"}, b"ids"))
    with pytest.raises(Refused, match="digest of the job differs"):
        receive(label)
    with pytest.raises(Refused, match="digest of the job differs"):
        gathered(client)


def test_a_restarted_feature_party_gets_a_new_channel_and_the_others_keep_theirs(net: Net) -> None:
    server = net.server("airport", "bank")
    net.client(server.port, "bank")
    with net.client(server.port, "airport") as before:
        channels = gathered(server)
        send(channels["airport"], Rewind(1))
        assert receive(gathered(before)["label"]) == Rewind(1)
    send(channels["airport"], Rewind(2))  # Nobody is there: of no use to the next process.
    after = net.client(server.port, "airport")
    with pytest.raises(PeerRestarted, match="airport was restarted"):
        receive(channels["airport"])
    again = gathered(server)
    assert again["bank"] is channels["bank"]
    assert again["airport"] is not channels["airport"]
    send(again["airport"], Rewind(3))
    assert receive(gathered(after)["label"]) == Rewind(3)


def test_a_restarted_label_party_is_noticed(net: Net) -> None:
    first = net.server()
    client = net.client(first.port)
    before = gathered(client)["label"]
    gathered(first)
    first.stop(None)
    send(before, Finished(1))
    second = net.server(address=f"127.0.0.1:{first.port}")
    with pytest.raises(PeerRestarted, match="label was restarted"):
        receive(before)
    after = gathered(client)["label"]
    assert after is not before
    send(after, Finished(2))
    assert receive(gathered(second)["airport"]) == Finished(2)


def test_the_newest_process_of_a_party_takes_over(net: Net) -> None:
    server = net.server()
    old = gathered(net.client(server.port))["label"]
    first = gathered(server)["airport"]
    new = gathered(net.client(server.port))["label"]
    with pytest.raises(Refused, match="another process of feature party 'airport' has taken its place"):
        receive(old)
    with pytest.raises(PeerRestarted):
        receive(first)
    send(new, Bye())
    assert receive(gathered(server)["airport"]) == Bye()


def test_a_reason_to_stop_reaches_every_party(net: Net) -> None:
    server = net.server("airport", "bank")
    labels = [gathered(net.client(server.port, party))["label"] for party in ("airport", "bank")]
    gathered(server)
    begun = time.monotonic()
    server.stop("bank sent nonsense")
    assert time.monotonic() - begun < 1.5
    assert [receive(label) for label in labels] == [Stop("bank sent nonsense")] * 2


def test_a_feature_party_s_reason_to_stop_reaches_the_label_party(net: Net) -> None:
    server = net.server()
    client = net.client(server.port)
    gathered(client)
    client.stop("no disk")
    assert receive(gathered(server)["airport"]) == Stop("no disk")


def test_last_words_arrive_through_a_cut(tcp_proxy: Callable[[str], Any], net: Net) -> None:
    server = net.server()
    proxy = tcp_proxy(f"127.0.0.1:{server.port}")
    label = gathered(net.client(proxy.port))["label"]
    airport = gathered(server)["airport"]
    proxy.cut()
    send(airport, Bye())
    server.__exit__(None, None, None)
    assert receive(label) == Bye()


def test_who_comes_for_the_next_job_waits_until_this_one_has_ended(tcp_proxy: Callable[[str], Any], net: Net) -> None:
    server = net.server("airport", "bank")
    proxy = tcp_proxy(f"127.0.0.1:{server.port}")
    with net.client(server.port, "airport"):
        net.client(proxy.port, "bank")
        bank = gathered(server)["bank"]
    proxy.freeze()
    send(bank, Bye())  # The server waits a while for the bank to hear it.
    ending = threading.Thread(target=server.__exit__, args=(None, None, None))
    ending.start()
    next_job = Agreement({**AGREED.fields, "digest of the job": "next"}, b"ids")
    early = net.client(server.port, "airport", agreed=next_job)
    assert net.sees("label", "waiting: the label party is ending the job")
    ending.join()
    after = net.server(address=f"127.0.0.1:{server.port}", agreed=next_job)
    send(gathered(early)["label"], Bye())
    assert receive(gathered(after)["airport"]) == Bye()


def talk(channel: Channel, count: int) -> list[int]:
    """Send numbers with some more ahead than received, as a role does that works ahead."""
    received = []
    for number in range(count):
        send(channel, Embeddings(number, 0, torch.full((8, 256), float(number))))
        if number >= 3:
            received.append(receive(channel))
    received += [receive(channel) for _ in range(3)]
    return [message.step for message in received if float(message.tensor[7, 255]) == message.step]  # type: ignore[union-attr]


def test_who_is_ahead_waits_until_the_label_party_is_there_too(net: Net) -> None:
    def step(number: int, space: str = "s") -> Agreement:
        fields = {"space": space, "configuration": f"{number} of 2", "digest of the job": str(number)}
        return Agreement(fields, b"digest of the ids", passing=frozenset({"configuration"}))

    first = net.server(agreed=step(1))
    ahead = net.client(first.port, agreed=step(2))
    sentence = "configuration differs: the label party has '1 of 2', feature party 'airport' has '2 of 2'"
    assert net.sees("label", f"waiting: {sentence}")
    assert not [state for state in net.states("airport") if "refused" in state]
    first.__exit__(None, None, None)
    second = net.server(agreed=step(2), address=f"127.0.0.1:{first.port}")
    assert list(gathered(second)) == ["airport"]
    assert list(gathered(ahead)) == ["label"]
    elsewhere = net.client(second.port, agreed=step(1, "t"))
    with pytest.raises(Refused, match="space differs"):
        gathered(elsewhere)


def test_through_a_network_that_is_cut_again_and_again(tcp_proxy: Callable[[str], Any], net: Net) -> None:
    count = max(2000, 100 * CUTS)
    server = net.server()
    proxy = tcp_proxy(f"127.0.0.1:{server.port}")
    client = net.client(proxy.port)
    channels = gathered(server)["airport"], gathered(client)["label"]
    chance = random.Random(0)
    with ThreadPoolExecutor(2) as threads:
        talks = [threads.submit(talk, channel, count) for channel in channels]
        cuts = again = 0
        while cuts < CUTS and not all(talk.done() for talk in talks):
            time.sleep(chance.uniform(0.01, 0.1))
            proxy.cut(one=cuts % 2 == 1)
            cuts += 1
            if cuts % 2:  # On a busy machine all cuts might fall into one loss.
                eventually(partial(net.is_connected_again, again, talks))
                again = net.states("label").count("connected again")
        assert [talk.result() for talk in talks] == [list(range(count))] * 2
    assert cuts >= 5
    assert net.states("label").count("connected again") >= 3
    assert "connected" in net.states("airport")


def test_a_half_open_network_is_noticed_and_survived(tcp_proxy: Callable[[str], Any], net: Net) -> None:
    server = net.server()
    proxy = tcp_proxy(f"127.0.0.1:{server.port}")
    client = net.client(proxy.port)
    airport, label = gathered(server)["airport"], gathered(client)["label"]
    proxy.freeze()
    send(airport, Finished(1))
    send(label, Finished(2))
    for peer in ("airport", "label"):
        assert net.sees(peer, "lost: not heard for 2 s; waiting up to 20 s for its return")
    proxy.thaw()
    assert receive(label) == Finished(1)
    assert receive(airport) == Finished(2)


ECHO = """
from pathlib import Path
from tpsl.transport.channel import run_alone
from tpsl.transport.frames import Limits
from tpsl.transport.handshake import Agreement
from tpsl.net.credentials import Certificates
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.link import Patience, Terms
from tpsl.transport.messages import Bye

async def echo(client):
    label = (await client.gather())["label"]
    while not isinstance(message := await label.receive(), Bye):
        await label.send(message)

with FeatureClient(
    address, "airport", Agreement({"protocol version": "1", "digest of the job": "abc"}, b"digest of the ids"),
    Terms(Limits(512, 256, ("embeddings",)), "float32", Patience(silence, 20), lambda *news: None),
    credentials=Certificates.load(Path(certificates)).channel(),
) as client:
    run_alone(echo(client))
"""


Echo = Callable[..., tuple[Channel, Any]]


@pytest.fixture
def echo(net: Net, fork: Callable[..., Any], tmp_path: Path) -> Echo:
    """Start a feature party in a process of its own that sends back whatever it receives, and return our channel."""

    def start(silence: float = 2) -> tuple[Channel, Any]:
        server = net.server(patience=Patience(silence, 20))
        own = {"address": f"127.0.0.1:{server.port}", "certificates": str(net.certificates / "airport")}
        process = fork(ECHO, tmp_path, silence=silence, **own)
        return gathered(server)["airport"], process

    return start


def test_a_stopped_process_is_noticed_and_goes_on(net: Net, echo: Echo) -> None:
    airport, process = echo()
    sent = 0

    def send_some(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            send(airport, Embeddings(sent, 0, torch.full((512, 256), float(sent))))
            sent += 1

    send_some(20)
    process.signal(signal.SIGSTOP)
    send_some(20)
    assert net.sees("airport", "lost: not heard for 2 s")
    send_some(20)
    process.signal(signal.SIGCONT)
    assert [receive(airport).step for _ in range(sent)] == list(range(sent))  # type: ignore[union-attr]
    assert "connected again" in net.states("airport")
    send(airport, Bye())
    assert process.status(SOON) == 0
    assert process.stderr.read_text() == ""


def test_a_process_stopped_for_a_moment_is_not_given_up(net: Net, echo: Echo) -> None:
    airport, process = echo(silence=4)
    for number in range(3):
        process.signal(signal.SIGSTOP)
        send(airport, Finished(number))
        time.sleep(1.4)
        process.signal(signal.SIGCONT)
        assert receive(airport) == Finished(number)
    assert not [state for state in net.states("airport") if state.startswith("lost")]


def test_a_killed_process_is_noticed_at_once(net: Net, echo: Echo) -> None:
    _, process = echo(silence=600)
    process.signal(signal.SIGKILL)
    assert net.sees("airport", "lost: the connection ended")


def test_many_reconnections_leave_no_threads_behind(tcp_proxy: Callable[[str], Any], net: Net) -> None:
    server = net.server()
    proxy = tcp_proxy(f"127.0.0.1:{server.port}")
    client = net.client(proxy.port)
    airport, label = gathered(server)["airport"], gathered(client)["label"]
    most = 0
    for number in range(10):
        send(airport, Finished(number))
        assert receive(label) == Finished(number)
        most = max(most, threading.active_count()) if number < 3 else most
        proxy.cut()
    send(airport, Bye())
    assert receive(label) == Bye()
    assert eventually(lambda: threading.active_count() <= most + 2)
