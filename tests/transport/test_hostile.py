"""A real server against everything that an honest feature party never does, a client against false label parties."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
import torch

from tpsl.transport import Agreement, BadMessage, Channel, Limits, Refused, run_alone, wire_pb2
from tpsl.transport.certificates import create_authority, issue
from tpsl.transport.credentials import LABEL_SERVER_NAME, Certificates
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.frames import decode, encode_control, encode_message
from tpsl.transport.handshake import FeatureHandshake, LabelHandshake, Place
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience
from tpsl.transport.messages import Embeddings, Finished, Gradients, Message

LIMITS = Limits(rows=512, width=256)
TERMS = Agreement({"protocol version": "1", "digest of the job": "abc"}, b"digest of the ids")
PATIENCE = Patience(silence=1, wait=20)
METHOD = "/tpsl.wire.Split/Connect"
SOON = 15.0
MIB = 1 << 20


class Ended(Exception):
    """The stream is over; the status says how."""


class Raw:
    """A stream to the server on which anything can be written."""

    def __init__(self, port: int, credentials: grpc.ChannelCredentials | None) -> None:
        options = [
            ("grpc.ssl_target_name_override", LABEL_SERVER_NAME),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        address = f"127.0.0.1:{port}"
        self.channel = (
            grpc.secure_channel(address, credentials, options=options)
            if credentials
            else grpc.insecure_channel(address, options=options)
        )
        self.queue: SimpleQueue[bytes | None] = SimpleQueue()
        self.written = 0
        self.call: Any = self.channel.stream_stream(METHOD, None, None)(self._writing())

    def _writing(self) -> Iterator[bytes]:
        while (frame := self.queue.get()) is not None:
            yield frame
            self.written += 1

    def write(self, *frames: bytes) -> None:
        for frame in frames:
            self.queue.put(frame)

    def read(self) -> wire_pb2.Header:
        try:
            return decode(next(self.call), LIMITS, "float32", sender="server").header
        except StopIteration as end:
            raise Ended("OK") from end
        except grpc.RpcError as error:
            raise Ended(f"{error.code().name}: {error.details()}") from error

    def ending(self) -> str:
        """Read to the end and return how it ended."""
        try:
            while True:
                self.read()
        except Ended as end:
            return str(end)

    def shake_hands(self, party: str = "airport") -> tuple[bytes, bytes]:
        """Do the handshake as an honest party; return what was sent."""
        handshake = FeatureHandshake(party, TERMS)
        hello = handshake.hello()
        self.write(hello)
        proof = handshake.proof(next(self.call), Place(b"", 0))
        self.write(proof)
        handshake.welcomed(next(self.call))
        return hello, proof

    def close(self) -> None:
        self.queue.put(None)
        self.call.cancel()
        self.channel.close()


class Scene:
    """A server for airport and bank, whatever attacks it, and what it sees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open = contextlib.ExitStack()
        self.seen: list[tuple[str, str]] = []
        self.server = self.open.enter_context(
            LabelServer(
                "127.0.0.1:0",
                ("airport", "bank"),
                TERMS,
                LIMITS,
                "float32",
                credentials=Certificates.load(folder / "label").server(),
                patience=PATIENCE,
                watch=self._watch,
                window=4 * MIB,
            )
        )

    def _watch(self, peer: str, state: str) -> None:
        self.seen.append((peer, state))

    def raw(self, party: str = "airport") -> Raw:
        raw = Raw(self.server.port, Certificates.load(self.folder / party).channel())
        self.open.callback(raw.close)
        return raw

    def client(self, port: int, party: str = "airport", **changes: Any) -> FeatureClient:
        credentials = changes.pop("credentials", None) or Certificates.load(self.folder / party).channel()
        return self.open.enter_context(
            FeatureClient(
                f"127.0.0.1:{port}",
                party,
                TERMS,
                LIMITS,
                "float32",
                credentials=credentials,
                patience=changes.pop("patience", PATIENCE),
                watch=lambda *news: None,
            )
        )

    def channel(self, party: str) -> Channel:
        others = {"airport", "bank"} - {party}
        return run_alone(self.server.gather(without=others))[party]

    def refuses(self, party: str, sentence: str) -> bool:
        return eventually(lambda: any(p == party and s.startswith("refused") and sentence in s for p, s in self.seen))

    def serves(self, party: str) -> bool:
        """An honest party comes, is heard and is answered."""
        label = run_alone(self.client(self.server.port, party).gather())["label"]
        run_alone(label.send(Finished(1)))
        channel = self.channel(party)
        assert run_alone(channel.receive()) == Finished(1)
        run_alone(channel.send(Finished(2)))
        return run_alone(label.receive()) == Finished(2)


@pytest.fixture
def scene(certificates: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Scene]:
    scene = Scene(certificates)
    with scene.open:
        yield scene
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("tpsl")])
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Path:
    """Certificates that must not be accepted: of another authority, and expired ones of ours."""
    folder = tmp_path_factory.mktemp("strangers")
    create_authority(folder / "authority")
    issue(folder / "authority", folder / "label", "label", label=True)
    issue(folder / "authority", folder / "airport", "airport", label=False)
    then = datetime.now(UTC) - timedelta(days=30)
    issue(certificates / "authority", folder / "expired", "airport", label=False, days=10, now=then)
    issue(certificates / "authority", folder / "expired_label", "label", label=True, days=10, now=then)
    issue(certificates / "authority", folder / "shop", "shop", label=False)
    return folder


def eventually(condition: Callable[[], bool], within: float = SOON) -> bool:
    until = time.monotonic() + within
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def message(sequence: int, content: Message | None = None, acknowledged: int = 0) -> bytes:
    return encode_message(content or Finished(sequence), sequence, acknowledged, "float32")


def heartbeat(acknowledged: int = 0) -> bytes:
    header = wire_pb2.Header(acknowledged=acknowledged)
    header.heartbeat.SetInParent()
    return encode_control(header)


def refused(raw: Raw) -> str:
    header = raw.read()
    assert header.WhichOneof("body") == "refusal"
    assert raw.ending() == "OK"
    return header.refusal.reason


# Before the handshake is done: refused, and nobody else notices.


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (b"\x00\xff\x17 random", "sent 10 bytes that do not begin with a header"),
        (b"", "sent 0 bytes"),
        (os.urandom(100_000), "do not begin with a header|not in canonical form|cannot be read"),
        (message(1, Embeddings(0, 0, torch.zeros(1, 1))), "sent embeddings"),
        (message(1), "sent finished in a handshake where hello was due"),
        (heartbeat(), "sent heartbeat in a handshake where hello was due"),
        (encode_control(wire_pb2.Header(proof=wire_pb2.Proof(proof=b"x"))), "sent proof in a handshake where hello"),
        (encode_control(wire_pb2.Header(welcome=wire_pb2.Welcome(link=b"x"))), "sent welcome in a handshake"),
    ],
)
def test_what_is_not_a_hello_is_refused(scene: Scene, frame: bytes, sentence: str) -> None:
    raw = scene.raw()
    raw.write(frame)
    reason = refused(raw)
    assert reason.startswith("feature party 'airport' ")
    assert any(part in reason for part in sentence.split("|"))
    assert scene.refuses("airport", reason)
    assert scene.serves("airport")


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (FeatureHandshake("airport", TERMS).hello(), "feature party 'airport' sent hello in a handshake where proof"),
        (encode_control(wire_pb2.Header(proof=wire_pb2.Proof(proof=bytes(32)))), "the record ids differ"),
        (message(1, Embeddings(0, 0, torch.zeros(1, 1))), "feature party 'airport' sent embeddings"),
        (b"random", "feature party 'airport' sent 6 bytes"),
    ],
)
def test_what_is_not_a_proof_is_refused(scene: Scene, frame: bytes, sentence: str) -> None:
    raw = scene.raw()
    raw.write(FeatureHandshake("airport", TERMS).hello())
    assert raw.read().WhichOneof("body") == "challenge"
    raw.write(frame)
    assert refused(raw).startswith(sentence)
    assert scene.serves("airport")


def test_a_recorded_handshake_does_not_open_the_door(scene: Scene) -> None:
    recorded = scene.raw().shake_hands()
    raw = scene.raw()
    raw.write(recorded[0])
    assert raw.read().WhichOneof("body") == "challenge"
    raw.write(recorded[1])
    assert refused(raw).startswith("the record ids differ")


def test_a_party_cannot_come_under_another_s_name(scene: Scene) -> None:
    raw = scene.raw("bank")
    raw.write(FeatureHandshake("airport", TERMS).hello())
    assert refused(raw) == "the certificate is that of 'bank', not of 'airport'"
    with pytest.raises(Refused, match="the certificate is that of 'bank', not of 'airport'"):
        bank = Certificates.load(scene.folder / "bank").channel()
        run_alone(scene.client(scene.server.port, "airport", credentials=bank).gather())
    assert scene.serves("airport")


def test_a_certified_stranger_is_refused(scene: Scene, strangers: Path) -> None:
    raw = Raw(scene.server.port, Certificates.load(strangers / "shop").channel())
    scene.open.callback(raw.close)
    raw.write(FeatureHandshake("shop", TERMS).hello())
    assert refused(raw) == "'shop' is not a feature party of this job; they are airport, bank"


def test_a_stream_that_says_nothing_is_ended(scene: Scene) -> None:
    raw = scene.raw()
    begun = time.monotonic()
    assert raw.ending().startswith("CANCELLED")
    assert time.monotonic() - begun < 2.5
    assert scene.refuses("airport", "the handshake was not finished within 1 s")


def test_a_stream_that_stops_in_the_middle_of_the_handshake_is_ended(scene: Scene) -> None:
    raw = scene.raw()
    raw.write(FeatureHandshake("airport", TERMS).hello())
    raw.read()
    begun = time.monotonic()
    assert raw.ending().startswith("CANCELLED")
    assert time.monotonic() - begun < 2.5
    assert scene.serves("airport")


def test_many_streams_of_one_party_do_not_keep_another_out(scene: Scene) -> None:
    before = threading.active_count()
    silent = [scene.raw() for _ in range(40)]
    assert scene.serves("bank")
    assert eventually(lambda: all(raw.call.done() for raw in silent), within=5)
    for raw in silent:
        raw.close()
    assert eventually(lambda: threading.active_count() < before + 25)
    assert scene.serves("airport")


def test_connections_that_never_speak_do_not_keep_a_party_out(scene: Scene) -> None:
    with contextlib.ExitStack() as sockets:
        for _ in range(50):
            sockets.enter_context(socket.create_connection(("127.0.0.1", scene.server.port)))
        assert scene.serves("airport")


# After the handshake: the job stops with a sentence that names the party.


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        ([b"random"], "sent 6 bytes that do not begin with a header"),
        ([message(2)], "sent message 2 where 1 was due"),
        ([message(1), message(1)], "sent message 1 where 2 was due"),
        ([message(1), message(2), message(1)], "sent message 1 where 3 was due"),
        ([heartbeat(1)], "acknowledges message 1, which it was not sent"),
        ([FeatureHandshake("airport", TERMS).hello()], "sent a hello after the handshake"),
        ([heartbeat()] * 3000, "sends heartbeats without end"),
        (
            [encode_message(Embeddings(0, 0, torch.zeros(4, 4)), 1, 0, "float16")],
            "sent embeddings in another type of number than the job's float32",
        ),
        ([message(1, Embeddings(0, 0, torch.zeros(500, 257)))], "sent embeddings of 500 rows of 257 numbers"),
    ],
)
def test_a_bad_message_stops_the_job_with_a_sentence(scene: Scene, frames: list[bytes], sentence: str) -> None:
    raw = scene.raw()
    raw.shake_hands()
    raw.write(*frames)
    channel = scene.channel("airport")
    with pytest.raises(BadMessage, match=f"^feature party 'airport' {sentence}"):
        while True:
            run_alone(channel.receive())
    scene.server.stop(f"airport {sentence}")
    headers = [raw.read()]
    while headers[-1].WhichOneof("body") != "stop":
        headers.append(raw.read())
    assert headers[-1].stop.reason == f"airport {sentence}"


def test_after_a_bad_message_the_party_is_not_let_in_again(scene: Scene) -> None:
    raw = scene.raw()
    raw.shake_hands()
    raw.write(b"random")
    with pytest.raises(BadMessage):
        run_alone(scene.channel("airport").receive())
    with pytest.raises(Refused, match="the job was stopped: feature party 'airport' sent 6 bytes"):
        run_alone(scene.client(scene.server.port).gather())


def test_an_oversized_message_ends_the_connection(scene: Scene) -> None:
    raw = scene.raw()
    raw.shake_hands()
    raw.write(message(1, Embeddings(0, 0, torch.zeros(4096, 256))))
    assert raw.ending().startswith("RESOURCE_EXHAUSTED")
    assert eventually(
        lambda: ("airport", "lost: the connection ended; waiting up to 20 s for its return") in scene.seen
    )
    assert scene.serves("bank")


@pytest.mark.parametrize("seed", range(3))
def test_random_streams_neither_kill_nor_deafen_the_server(scene: Scene, seed: int) -> None:
    chance = random.Random(seed)
    honest = [
        message(1),
        heartbeat(),
        FeatureHandshake("airport", TERMS).hello(),
        message(1, Gradients(1, 1, torch.zeros(8, 8))),
    ]
    for _ in range(15):
        raw = scene.raw()
        for _ in range(chance.randrange(1, 4)):
            frame = bytearray(chance.choice(honest))
            for _ in range(chance.randrange(4)):
                frame[chance.randrange(len(frame))] = chance.randrange(256)
            raw.write(bytes(frame[: chance.randrange(1, len(frame) + 1)]))
        raw.queue.put(None)
        raw.ending()
        raw.close()
    assert scene.serves("airport")
    assert scene.serves("bank")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_flood_is_held_back_and_memory_stays_bounded(scene: Scene) -> None:
    raw = scene.raw()
    raw.shake_hands()
    channel = scene.channel("airport")
    frames = 400
    before = resident()
    tensor = torch.zeros(512, 256)  # half a MiB each, 200 MiB in all

    def flood() -> None:
        for sequence in range(1, frames + 1):
            while raw.queue.qsize() > 2:
                time.sleep(0.001)
            raw.write(message(sequence, Embeddings(sequence, 0, tensor)))

    flooding = threading.Thread(target=flood, daemon=True)
    flooding.start()
    seen = -1
    while raw.written != seen:
        seen = raw.written
        time.sleep(1.5)
    assert 0 < seen < 100
    assert resident() - before < 100 * MIB
    # It is held back, not given up: silence is not counted while nobody listens.
    assert not [state for peer, state in scene.seen if peer == "airport" and state.startswith("lost")]
    steps = [run_alone(channel.receive()).step for _ in range(frames)]  # type: ignore[union-attr]
    assert steps == list(range(1, frames + 1))


def test_a_flood_of_tiny_messages_is_held_back_too(scene: Scene) -> None:
    raw = scene.raw()
    raw.shake_hands()
    raw.write(*(message(sequence) for sequence in range(1, 20_001)))
    channel = scene.channel("airport")
    seen = -1
    while raw.written != seen:
        seen = raw.written
        time.sleep(0.5)
    assert channel.received < 5_000  # type: ignore[attr-defined]


def test_a_peer_that_stops_reading_blocks_its_own_channel_only(scene: Scene) -> None:
    raw = scene.raw()
    raw.shake_hands()
    channel = scene.channel("airport")
    sent = 0

    def send() -> None:
        nonlocal sent
        with contextlib.suppress(Exception):
            for step in range(400):
                run_alone(channel.send(Gradients(step, 0, torch.zeros(512, 256))))
                sent += 1

    def beat() -> None:
        while not raw.call.done():
            raw.write(heartbeat())
            time.sleep(0.2)

    sending, beating = (threading.Thread(target=action, daemon=True) for action in (send, beat))
    sending.start()
    beating.start()
    assert eventually(lambda: sent > 0)
    sending.join(2)
    assert sent < 100
    assert scene.serves("bank")
    begun = time.monotonic()
    scene.server.stop("enough")
    assert time.monotonic() - begun < 5


def test_a_peer_that_stops_reading_and_speaking_is_lost(scene: Scene) -> None:
    raw = scene.raw()
    raw.shake_hands()
    channel = scene.channel("airport")
    for step in range(6):
        run_alone(channel.send(Gradients(step, 0, torch.zeros(512, 256))))
    assert eventually(
        lambda: ("airport", "lost: not heard for 1 s; waiting up to 20 s for its return") in scene.seen, within=3
    )


# TLS: who is not what the authority says gets nowhere.


def test_a_plaintext_client_gets_nowhere(scene: Scene) -> None:
    raw = Raw(scene.server.port, None)
    scene.open.callback(raw.close)
    assert raw.ending().startswith("UNAVAILABLE")
    assert scene.serves("airport")


def raw_credentials(trusted: Path, own: Path | None) -> grpc.ChannelCredentials:
    """What somebody connects with who does not check the own certificate first."""
    key, chain = [(own / name).read_bytes() if own else None for name in ("key.pem", "cert.pem")]
    return grpc.ssl_channel_credentials((trusted / "ca.pem").read_bytes(), key, chain)


@pytest.mark.parametrize("which", [None, "airport", "expired"])
def test_no_certificate_a_foreign_one_and_an_expired_one_are_refused_and_the_client_says_so(
    scene: Scene, strangers: Path, which: str | None
) -> None:
    credentials = raw_credentials(scene.folder / "airport", strangers / which if which else None)
    begun = time.monotonic()
    with pytest.raises(Refused, match="it does not accept this party's certificate"):
        run_alone(scene.client(scene.server.port, credentials=credentials).gather())
    assert time.monotonic() - begun < 5
    assert not scene.seen
    assert scene.serves("airport")


def listening_as(scene: Scene, folder: Path) -> int:
    """Run a server of the right program with the wrong certificate."""
    pair = ((folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes())
    credentials = grpc.ssl_server_credentials([pair], (scene.folder / "label" / "ca.pem").read_bytes(), True)
    server = scene.open.enter_context(
        LabelServer(
            "127.0.0.1:0",
            ("airport",),
            TERMS,
            LIMITS,
            "float32",
            credentials=credentials,
            patience=PATIENCE,
            watch=lambda *news: None,
        )
    )
    return server.port


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        ("foreign", "cannot be trusted: unable to get local issuer certificate"),
        ("expired", "cannot be trusted: certificate has expired"),
        ("feature party", "cannot be trusted: unsupported certificate purpose"),
    ],
)
def test_a_false_label_party_is_refused_by_the_client(scene: Scene, strangers: Path, which: str, sentence: str) -> None:
    folders = {
        "foreign": strangers / "label",
        "expired": strangers / "expired_label",
        "feature party": scene.folder / "bank",
    }
    port = listening_as(scene, folders[which])
    with pytest.raises(Refused, match=f"the certificate of what listens at 127.0.0.1:{port} {sentence}"):
        run_alone(scene.client(port).gather())


def test_a_label_party_without_tls_is_refused_by_the_client(scene: Scene) -> None:
    server = scene.open.enter_context(
        LabelServer(
            "127.0.0.1:0",
            ("airport",),
            TERMS,
            LIMITS,
            "float32",
            credentials=None,
            patience=PATIENCE,
            watch=lambda *news: None,
        )
    )
    with pytest.raises(Refused, match=f"what listens at 127.0.0.1:{server.port} does not speak TLS"):
        run_alone(scene.client(server.port).gather())


class FalseLabelParty:
    """Has the label party's certificate, and after an honest handshake says whatever it is told to."""

    def __init__(self, folder: Path, frames: list[bytes], *, honest: bool = True) -> None:
        self.frames, self.honest = frames, honest
        self.pool = ThreadPoolExecutor(4)
        self.server = grpc.server(self.pool)
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tpsl.wire.Split", {"Connect": handler}),)
        )
        self.port = self.server.add_secure_port("127.0.0.1:0", Certificates.load(folder / "label").server())
        self.server.start()

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        handshake = LabelHandshake(TERMS, ("airport",))
        challenge = handshake.challenge(next(requests), "airport")
        if self.honest:
            yield challenge
            handshake.proven(next(requests))
            yield handshake.welcome(Place(b"a link", 0))
        yield from self.frames
        with contextlib.suppress(grpc.RpcError):
            for _ in requests:
                pass

    def close(self) -> None:
        self.server.stop(None)
        self.pool.shutdown()


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        ([b"random"], "the label party sent 6 bytes that do not begin with a header"),
        ([message(5)], "the label party sent message 5 where 1 was due"),
        ([heartbeat()] * 3000, "the label party sends heartbeats without end"),
        ([message(1, Gradients(0, 0, torch.zeros(4096, 256)))], "too large for this job"),
    ],
)
def test_a_bad_message_of_the_label_party_stops_the_feature_party(
    scene: Scene, frames: list[bytes], sentence: str
) -> None:
    false = FalseLabelParty(scene.folder, frames)
    scene.open.callback(false.close)
    client = scene.client(false.port)
    with pytest.raises(BadMessage, match=sentence):
        run_alone(run_alone(client.gather())["label"].receive())
    client.stop("the label party sent nonsense")


@pytest.mark.parametrize("frame", [b"random", heartbeat(), message(1), FeatureHandshake("airport", TERMS).hello()])
def test_a_label_party_that_does_not_know_the_handshake_is_not_trusted(scene: Scene, frame: bytes) -> None:
    false = FalseLabelParty(scene.folder, [frame], honest=False)
    scene.open.callback(false.close)
    with pytest.raises(BadMessage, match=r"^the label party sent "):
        run_alone(scene.client(false.port).gather())


QUIET = """
import sys
from pathlib import Path
from tpsl.transport import Agreement, Limits, run_alone
from tpsl.transport.credentials import Certificates
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience

with LabelServer(
    "127.0.0.1:0", ("airport",), Agreement({"job": "abc"}, b"ids"), Limits(8, 8), "float32",
    credentials=Certificates.load(Path(sys.argv[1])).server(), patience=Patience(1, 2), watch=lambda *news: None,
) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


def test_none_of_it_is_written_to_stderr(certificates: Path, strangers: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", QUIET, certificates / "label"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("GRPC")},
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    attackers = [
        None,
        raw_credentials(certificates / "airport", None),
        raw_credentials(certificates / "airport", strangers / "expired"),
        raw_credentials(certificates / "airport", strangers / "airport"),
        raw_credentials(certificates / "airport", certificates / "airport"),
    ]
    for credentials in attackers:
        raw = Raw(port, credentials)
        raw.write(b"random", os.urandom(200_000))
        raw.ending()
        raw.close()
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    _, errors = process.communicate(timeout=SOON)
    assert errors == ""
    assert process.returncode == 0
