"""A label party's server, a stream on which anything can be written to it, and certificates nobody should accept."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from tpsl.transport import wire_pb2
from tpsl.transport.channel import Channel, run_alone
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.frames import Limits, decode, encode_control, encode_message
from tpsl.transport.handshake import Agreement, FeatureHandshake, LinkPosition
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Terms
from tpsl.transport.messages import Finished, Message

from tpsl.net.certificates import create_authority, issue
from tpsl.net.credentials import LABEL_SERVER_NAME, Certificates
from tpsl.net.peers import ONLY_WORKER, WorkerPlace

LIMITS = Limits(rows=512, width=256, topics=("embeddings", "gradients"))
AGREED = Agreement({"protocol version": "1", "digest of the job": "abc"}, b"digest of the ids")
PATIENCE = Patience(silence=1, wait=20)
METHOD = "/tpsl.wire.Split/Connect"
WINDOW = 4 << 20

SOON = 15.0


def eventually(condition: Callable[[], bool], within: float = SOON) -> bool:
    until = time.monotonic() + within
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


class Frames:
    """Whole frames as an honest party under the terms of the scene could send them, at the right moment."""

    def hello(self, party: str = "airport") -> bytes:
        return FeatureHandshake(party, AGREED).hello()

    def message(self, sequence: int, content: Message | None = None) -> bytes:
        return encode_message(content or Finished(sequence), sequence, 0, "float32")

    def heartbeat(self, acknowledged: int = 0) -> bytes:
        header = wire_pb2.Header(acknowledged=acknowledged)
        header.heartbeat.SetInParent()
        return encode_control(header)


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

    def refused(self) -> str:
        """Read a refusal and the end; return the reason."""
        header = self.read()
        assert header.WhichOneof("body") == "refusal"
        assert self.ending() == "OK"
        return header.refusal.reason

    def shake_hands(
        self,
        party: str = "airport",
        worker: WorkerPlace = ONLY_WORKER,
        link: bytes = b"",
        received: int = 0,
    ) -> tuple[bytes, bytes]:
        """Do the handshake as an honest party; return what was sent, and keep the link it was given."""
        handshake = FeatureHandshake(party, AGREED)
        hello = handshake.hello()
        self.write(hello)
        proof = handshake.proof(next(self.call), LinkPosition(link, received, worker))
        self.write(proof)
        welcome = handshake.welcomed(next(self.call))
        self.link = welcome.link
        return hello, proof

    def close(self) -> None:
        self.queue.put(None)
        self.call.cancel()
        self.channel.close()


class Scene:
    """A server for airport and bank, whatever attacks it, and what it sees."""

    terms = AGREED
    eventually = staticmethod(eventually)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open = contextlib.ExitStack()
        self.seen: list[tuple[str, str]] = []
        self.server = self.serving_both()

    def serving_both(self, **terms: Any) -> LabelServer:
        """Start a server for airport and bank."""
        return self.serving(
            Certificates.load(self.folder / "label").server(),
            parties=("airport", "bank"),
            watch=lambda peer, state: self.seen.append((peer, state)),
            **terms,
        )

    def serving(
        self,
        credentials: grpc.ServerCredentials | None,
        parties: tuple[str, ...] = ("airport",),
        watch: Callable[[str, str], None] = lambda peer, state: None,
        patience: Patience = PATIENCE,
        most_workers: int = 1,
    ) -> LabelServer:
        """Start a server of the right program."""
        return self.open.enter_context(
            LabelServer(
                "127.0.0.1:0",
                parties,
                AGREED,
                Terms(
                    replace(LIMITS, window=WINDOW),
                    "float32",
                    patience,
                    watch,
                    most_workers=most_workers,
                ),
                credentials=credentials,
            )
        )

    def raw(self, party: str = "airport") -> Raw:
        """Open a stream with the certificate of this party."""
        return self.raw_with(Certificates.load(self.folder / party).channel())

    def raw_with(self, credentials: grpc.ChannelCredentials | None) -> Raw:
        raw = Raw(self.server.port, credentials)
        self.open.callback(raw.close)
        return raw

    def client(
        self,
        port: int,
        party: str = "airport",
        credentials: grpc.ChannelCredentials | None = None,
        worker: WorkerPlace = ONLY_WORKER,
    ) -> FeatureClient:
        credentials = credentials or Certificates.load(self.folder / party).channel()
        terms = Terms(LIMITS, "float32", PATIENCE, lambda *news: None, worker=worker)
        return self.open.enter_context(
            FeatureClient(f"127.0.0.1:{port}", party, AGREED, terms, credentials=credentials)
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

    def stands_still(self, count: Callable[[], int], seconds: float) -> int:
        """Return a count once it has not changed for so many seconds."""
        seen = -1
        while count() != seen:
            seen = count()
            time.sleep(seconds)
        return seen


@pytest.fixture
def frames() -> Frames:
    return Frames()


@pytest.fixture
def raw_stream() -> type[Raw]:
    """Opens a stream to the server at a port with these credentials."""
    return Raw


@pytest.fixture
def scene(certificates: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Scene]:
    scene = Scene(certificates)
    with scene.open:
        yield scene
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("tpsl")])
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Path:
    """Certificates that must not be accepted: of another authority, and ours of another day or another party."""
    folder = tmp_path_factory.mktemp("strangers")
    create_authority(folder / "authority")
    issue(folder / "authority", folder / "label", "label", label=True)
    issue(folder / "authority", folder / "airport", "airport", label=False)
    then = datetime.now(UTC) - timedelta(days=30)
    issue(certificates / "authority", folder / "expired", "airport", label=False, days=10, now=then)
    issue(certificates / "authority", folder / "expired_label", "label", label=True, days=10, now=then)
    soon = datetime.now(UTC) + timedelta(days=2)
    issue(certificates / "authority", folder / "early", "airport", label=False, days=10, now=soon)
    issue(certificates / "authority", folder / "early_label", "label", label=True, days=10, now=soon)
    issue(certificates / "authority", folder / "shop", "shop", label=False)
    return folder


@pytest.fixture
def raw_credentials() -> Callable[[Path, Path | None], grpc.ChannelCredentials]:
    """What somebody connects with who does not check the own certificate first."""

    def credentials(trusted: Path, own: Path | None) -> grpc.ChannelCredentials:
        key, chain = [(own / name).read_bytes() if own else None for name in ("key.pem", "cert.pem")]
        return grpc.ssl_channel_credentials((trusted / "ca.pem").read_bytes(), key, chain)

    return credentials
