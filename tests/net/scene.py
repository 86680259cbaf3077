"""A label party's desk and server, parties that ask it, and connections on which anything can be sent."""

import contextlib
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import torch

from tpsl.net.agreement import Agreement, Introduction
from tpsl.net.asking import Due, Script
from tpsl.net.certificates import LABEL_SERVER_NAME, Certificates
from tpsl.net.client import LabelClient
from tpsl.net.codec import decode, encode
from tpsl.net.connection import Patience, Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import NetError, PeerRestarted
from tpsl.net.messages import Limits, Message
from tpsl.net.network import CODE, SERVICE
from tpsl.net.server import LabelServer

AGREED = Agreement({"protocol version": "1", "digest of the job": "abc"}, b"digest of the ids")
LIMITS = Limits(rows=512, width=256, calls=4)
ROWS, WIDTH = 3, 2
SOON = 15.0
MIB = 1 << 20


def eventually(condition: Callable[[], bool], within: float = SOON) -> bool:
    until = time.monotonic() + within
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def share(value: float, rows: int = ROWS, width: int = WIDTH) -> Message:
    return Message(tensor=torch.full((rows, width), float(value)))


def doubling(parties: tuple[str, ...], steps: int, rows: int = ROWS, width: int = WIDTH) -> Script:
    """A label party that answers each party with twice the sum of all: two steps in a thread of the network, then one
    in the thread that trains."""
    for step in range(steps):
        widths = dict.fromkeys(parties, width)
        question = yield Due("Step", step, 0, rows=rows, widths=widths, is_quick=step % 3 > 0)
        question.answer(dict.fromkeys(parties, Message(tensor=2 * sum(question.tensors()))))
        yield None


class Unchecked:
    """What somebody connects or listens with who does not look at the own certificate first."""

    party = "unknown"

    def __init__(self, folder: Path, own: Path, trusted: Path) -> None:
        """Make a folder: our authority, and this certificate."""
        self.folder = folder
        for name, source in (("ca.pem", trusted), ("cert.pem", own), ("key.pem", own)):
            (folder / name).write_bytes((source / name).read_bytes())
        self._authority, self._chain, self._key = ((folder / n).read_bytes() for n in ("ca.pem", "cert.pem", "key.pem"))

    def channel(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self._authority, self._key, self._chain)

    def server(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self._key, self._chain)], self._authority, require_client_auth=True)


class Refusal(Exception):
    """How a call ended: its status, and the code and the sentence that came with it."""

    def __init__(self, error: grpc.RpcError) -> None:
        self.status, self.sentence = error.code().name, error.details() or ""
        self.code = next((each.value for each in error.trailing_metadata() or () if each.key == CODE), "")
        super().__init__(f"{self.status} {self.code}: {self.sentence}")


class Raw:
    """A connection with these credentials, on which any bytes can be sent as a question."""

    def __init__(self, port: int, credentials: grpc.ChannelCredentials | None) -> None:
        options = [
            ("grpc.ssl_target_name_override", LABEL_SERVER_NAME),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        address = f"127.0.0.1:{port}"
        self.channel = (
            grpc.secure_channel(address, credentials, options)
            if credentials
            else grpc.insecure_channel(address, options)
        )
        self.process, self.session, self.number = b"a process of mine", b"", 0

    def begin(self, method: str, data: bytes, service: str = SERVICE, **options: Any) -> Any:
        return self.channel.unary_unary(f"/{service}/{method}", None, None).future(data, **{"timeout": SOON, **options})

    def call(self, method: str, data: bytes, **options: Any) -> bytes:
        """Return the answer, or raise Refusal."""
        try:
            return self.begin(method, data, **options).result()
        except grpc.RpcError as error:
            raise Refusal(error) from None

    def refused(self, method: str, data: bytes, **options: Any) -> Refusal:
        """Return how a call is refused."""
        try:
            answer = self.call(method, data, **options)
        except Refusal as refusal:
            return refusal
        raise AssertionError(f"{method} was answered: {answer!r}")

    def answer(self, method: str, data: bytes, limits: Limits = LIMITS) -> Message:
        """Return the answer that is not `pending`, however long it takes."""
        while (message := decode(self.call(method, data), limits, "float32", sender="the server")).pending:
            pass
        return message

    def proof(self, party: str = "airport") -> bytes:
        """Say `Hello` as an honest party, and return its `Agree`."""
        introduction = Introduction(party, party, AGREED)
        introduction.compare(self.answer("Hello", encode(introduction.fields(), "float32")))
        self.number += 1
        message = Message(secret=introduction.proof(), session=self.process, number=self.number, text=party)
        return encode(message, "float32")

    def agree(self, party: str = "airport") -> bytes:
        """Shake hands as an honest party and keep the session that begins; return the `Agree` that was sent."""
        sent = self.proof(party)
        self.session = self.answer("Agree", sent).session
        return sent

    def question(self, number: int, message: Message | None = None, /, **changes: Any) -> bytes:
        """Return the question that an honest party asks under this number, but for the changes."""
        honest = {"step": number, "number": number, "session": self.session}
        return encode(replace(message or share(number), **{**honest, **changes}), "float32")


class Scene:
    """A label party, whatever comes to it, and what it sees. All is closed in the end."""

    def __init__(
        self,
        folder: Path,
        parties: tuple[str, ...] = ("airport",),
        *,
        limits: Limits = LIMITS,
        agreed: Agreement = AGREED,
        address: str = "127.0.0.1:0",
        certified: bool = True,
        certificates: Any = None,
        **patience: float,
    ) -> None:
        self.folder, self.parties, self.certified = folder, parties, certified
        self.seen: list[tuple[str, str]] = []
        self.restarts = 0
        self.computed: list[int] = []
        """The steps whose questions the label party has got."""
        self.patience = Patience(**{"silence": 2, "wait": 20, **patience})
        self.terms = Terms(limits, "float32", self.patience)
        self.open = contextlib.ExitStack()
        self.pool = self.open.enter_context(ThreadPoolExecutor(8))
        self.desk = Desk(parties, agreed, replace(self.terms, watch=lambda *news: self.seen.append(news)))
        own = (certificates or Certificates.load(folder / "label")) if certified else None
        self.server = LabelServer(address, self.desk, ("Step", "Labels"), certificates=own)
        self.open.callback(self.server.stop)

    @property
    def port(self) -> int:
        return self.server.port

    def client(self, party: str = "airport", agreed: Agreement = AGREED, **changes: Any) -> LabelClient:
        """Return a feature party's way here, or to another `port`; `terms` and `certificates` may differ."""
        own = changes.get("certificates") or (Certificates.load(self.folder / party) if self.certified else None)
        address, terms = f"127.0.0.1:{changes.get('port', self.port)}", changes.get("terms", self.terms)
        return self.open.enter_context(LabelClient(address, party, agreed, terms, certificates=own))

    def asking(self, party: str = "airport", **changes: Any) -> LabelClient:
        """Return a client that has agreed."""
        client = self.client(party, **changes)
        client.agree({party: Message()})
        return client

    def raw(self, party: str = "airport") -> Raw:
        return self.raw_with(Certificates.load(self.folder / party).channel() if self.certified else None)

    def raw_with(self, credentials: grpc.ChannelCredentials | None) -> Raw:
        raw = Raw(self.port, credentials)
        self.open.callback(raw.channel.close)
        return raw

    def label(self, steps: int = 3, without: Collection[str] = (), **shape: int) -> "Future[None]":
        """Be the label party through restarts, as `serve` is, and tell all parties why it ends."""

        def noted(script: Script) -> Script:
            question = None
            with contextlib.suppress(StopIteration):
                while True:
                    due = script.send(question)  # type: ignore[arg-type]
                    question = yield due
                    self.computed += [] if due is None else [due.step]

        def serve() -> None:
            try:
                while True:
                    said = self.desk.gather(without)
                    self.desk.start(dict.fromkeys(said, Message(step=7)))
                    try:
                        return self.desk.answer_all(noted(doubling(tuple(said), steps, **shape)))
                    except PeerRestarted:
                        self.restarts += 1
            except NetError as error:
                self.server.stop(error)
                raise

        return self.pool.submit(serve)

    def serves(self, party: str) -> bool:
        """An honest party comes and is answered, whatever the others do."""
        others = set(self.parties) - {party}

        def serve() -> None:
            said = self.desk.gather(without=others)
            self.desk.start(dict.fromkeys(said, Message()))
            try:
                question = self.desk.take(Due("Step", 0, 0, one_of=(party,), rows=ROWS, widths={party: WIDTH}))
                question.answer({party: Message(tensor=2 * question.tensors()[0])})
            except PeerRestarted:  # what was gathered is of yesterday
                serve()

        serving, client = self.pool.submit(serve), self.asking(party)
        answer = client.ask("Step", 0, 0, {party: share(1)})[party].tensor
        serving.result(SOON)
        client.__exit__()
        return bool((answer == 2).all())

    def states(self, party: str) -> list[str]:
        return [state for seen, state in list(self.seen) if seen == party]

    def sees(self, party: str, part: str, within: float = SOON) -> bool:
        return eventually(lambda: any(part in state for state in self.states(party)), within)
