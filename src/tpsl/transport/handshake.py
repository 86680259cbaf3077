"""How two parties make sure, on every connection, that they hold the same job and the same records in the same order.

The feature party says Hello with its fields and a nonce; the label party compares them and answers with a Challenge:
its own fields and nonce. Then each proves that its record ids are the other's, the feature party first: an HMAC over
both nonces under a digest of the ids, which itself is never sent. A recorded handshake is worth nothing, since nonces
are fresh. Whatever differs ends the handshake with a sentence that says what it is.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from tpsl.transport import wire_pb2
from tpsl.transport.channel import Refused
from tpsl.transport.checks import BadMessage
from tpsl.transport.frames import Limits, as_sentence, decode, encode_control
from tpsl.transport.peers import LABEL_PARTY, MOST_WORKERS, ONLY_WORKER, WorkerPlace, described

RECORD_IDS = "record ids"

_NONCE_BYTES = 32
_NO_TENSOR = Limits(0, 0)


class NotYet(Refused):
    """The other side is elsewhere for a while; the sentence says where."""


@dataclass(frozen=True)
class Agreement:
    """What both sides must hold: fields that are compared in this order, and a digest of the record ids, kept at home.

    The first field that differs is the one that a refusal names, with both values and what helps, if `advice` has it.
    """

    fields: Mapping[str, str]
    ids: bytes = field(repr=False)
    advice: Mapping[str, str] = field(default_factory=dict)
    """What helps where a field differs, by its name; `RECORD_IDS` for the ids."""
    by_party: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """At the label party: further fields, each feature party's own."""
    passing: frozenset[str] = frozenset()
    """Fields in which honest parties differ for a while: who comes with another value may try again."""

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError("an agreement needs a digest of the record ids")
        # What the other side could not read is an error here, not there.
        hello = wire_pb2.Header(hello=wire_pb2.Hello(nonce=bytes(_NONCE_BYTES), fields=_fields(self)))
        decode(encode_control(hello), _NO_TENSOR, "float32", sender="this job's agreement")

    def with_party(self, party: str) -> Agreement:
        """Return what the label party must hold in common with this feature party."""
        return replace(self, fields={**self.fields, **self.by_party.get(party, {})}, by_party={})


@dataclass(frozen=True)
class LinkPosition:
    """Where a side stands: the link it knows (empty: none) and the last message it received on it."""

    link: bytes
    received: int
    worker: WorkerPlace = ONLY_WORKER
    """Which worker of its party it is."""


class FeatureHandshake:
    """The feature party's side of one handshake: `hello`, then `proof`, then `welcomed`, in this order."""

    def __init__(self, party: str, agreement: Agreement) -> None:
        self._party = party
        self._agreement = agreement
        self._own, self._other = secrets.token_bytes(_NONCE_BYTES), b""

    def hello(self) -> bytes:
        """Return the first frame."""
        hello = wire_pb2.Hello(party=self._party, nonce=self._own, fields=_fields(self._agreement))
        return encode_control(wire_pb2.Header(hello=hello))

    def proof(self, answer: bytes, position: LinkPosition) -> bytes:
        """Check the label party's challenge and return the answer to it."""
        challenge = self._read(answer, "challenge").challenge
        _require_agreement(challenge.fields, self._agreement, mine=self._party, theirs=LABEL_PARTY)
        self._other = _checked_nonce(challenge.nonce, LABEL_PARTY)
        proof = _proof(self._agreement, self._party, self._party, self._own, self._other)
        return encode_control(wire_pb2.Header(proof={"proof": proof, **asdict(position)}))

    def welcomed(self, answer: bytes) -> LinkPosition:
        """Check the label party's proof and return where it stands: on the same link, or on a new one."""
        welcome = self._read(answer, "welcome").welcome
        proof = _proof(self._agreement, LABEL_PARTY, self._party, self._own, self._other)
        if not hmac.compare_digest(proof, welcome.proof):
            raise Refused(_other_records(LABEL_PARTY, self._agreement))
        if not welcome.link:
            raise BadMessage("the label party sent a welcome without a link")
        place = _checked_place(welcome.worker, LABEL_PARTY)
        return LinkPosition(welcome.link, welcome.received, place)

    @staticmethod
    def _read(data: bytes, expected: str) -> wire_pb2.Header:
        header = _read_header(data, expected, "refusal", sender=described(LABEL_PARTY))
        if header.WhichOneof("body") == "refusal":
            raise Refused(f"the label party refuses: {header.refusal.reason}")
        return header


class LabelHandshake:
    """The label party's side of one handshake: `challenge`, then `proven`, then `welcome`, in this order."""

    def __init__(self, agreement: Agreement, parties: Iterable[str]) -> None:
        self._agreement = agreement
        self._parties = tuple(parties)
        self._own, self._other = secrets.token_bytes(_NONCE_BYTES), b""
        self.party = ""

    def challenge(self, data: bytes, certified: str | None) -> bytes:
        """Check a feature party's hello and return the answer; `certified` is the name in its certificate."""
        sender = described(certified) if certified is not None else "a connection"
        hello = _read_header(data, "hello", sender=sender).hello
        if certified is not None and hello.party != certified:
            raise Refused(f"the certificate is that of {certified!r}, not of {hello.party!r}")
        if hello.party not in self._parties:
            raise Refused(f"{hello.party!r} is not a feature party of this job; they are {', '.join(self._parties)}")
        self.party = hello.party
        self._agreement = self._agreement.with_party(self.party)
        self._other = _checked_nonce(hello.nonce, self.party)
        _require_agreement(hello.fields, self._agreement, mine=LABEL_PARTY, theirs=self.party)
        challenge = wire_pb2.Challenge(nonce=self._own, fields=_fields(self._agreement))
        return encode_control(wire_pb2.Header(challenge=challenge))

    def proven(self, data: bytes) -> LinkPosition:
        """Check the feature party's proof and return where it stands."""
        answer = _read_header(data, "proof", sender=described(self.party)).proof
        proof = _proof(self._agreement, self.party, self.party, self._other, self._own)
        if not hmac.compare_digest(proof, answer.proof):
            raise Refused(_other_records(self.party, self._agreement))
        place = _checked_place(answer.worker, self.party)
        return LinkPosition(answer.link, answer.received, place)

    def welcome(self, position: LinkPosition) -> bytes:
        """Return the last frame: this side's proof, and where it stands."""
        proof = _proof(self._agreement, LABEL_PARTY, self.party, self._other, self._own)
        return encode_control(wire_pb2.Header(welcome={"proof": proof, **asdict(position)}))


def refusal(reason: str) -> bytes:
    """Return the frame that ends a handshake."""
    return encode_control(wire_pb2.Header(refusal=wire_pb2.Refusal(reason=as_sentence(reason))))


def _fields(agreement: Agreement) -> list[wire_pb2.Field]:
    return [wire_pb2.Field(name=name, value=value) for name, value in agreement.fields.items()]


def _read_header(data: bytes, *expected: str, sender: str) -> wire_pb2.Header:
    header = decode(data, _NO_TENSOR, "float32", sender=sender).header
    kind = header.WhichOneof("body")
    if kind not in expected:
        raise BadMessage(f"{sender} sent {kind} in a handshake where {expected[0]} was due")
    return header


def _checked_nonce(nonce: bytes, sender: str) -> bytes:
    if len(nonce) != _NONCE_BYTES:
        raise BadMessage(f"{described(sender)} sent a nonce of {len(nonce)} bytes, not {_NONCE_BYTES}")
    return nonce


def _checked_place(place: wire_pb2.Worker, sender: str) -> WorkerPlace:
    """Return which worker the sender says that it is, if there can be such a one."""
    if not 1 <= place.count <= MOST_WORKERS:
        raise BadMessage(f"{described(sender)} has {place.count} workers, not 1 to {MOST_WORKERS}")
    if place.number >= place.count:
        raise BadMessage(f"{described(sender)} has {place.count} workers, and this is number {place.number}, from 0")
    if not place.crew:
        raise BadMessage(f"{described(sender)} sent a worker without the name of its crew")
    return WorkerPlace(place.number, place.count, place.crew)


def _require_agreement(received: Iterable[wire_pb2.Field], own: Agreement, *, mine: str, theirs: str) -> None:
    """Raise Refused naming the first field that differs. `mine` and `theirs` are the parties at both ends."""
    other = {entry.name: entry.value for entry in received}
    for name in dict.fromkeys((*own.fields, *other)):
        values = {mine: own.fields.get(name), theirs: other.get(name)}
        if values[mine] != values[theirs]:
            # The label party first, whoever says it: both sides show the same sentence.
            texts = [
                f"{described(party)} has {'none' if values[party] is None else repr(values[party])}"
                for party in sorted(values, key=lambda party: party != LABEL_PARTY)
            ]
            kind = NotYet if name in own.passing else Refused
            raise kind(f"{name} differs: {', '.join(texts)}{_advice(own, name)}")


def _other_records(party: str, own: Agreement) -> str:
    difference = f"the record ids differ: {described(party)} has other ids, or the same in another order"
    return difference + _advice(own, RECORD_IDS)


def _advice(own: Agreement, name: str) -> str:
    return f"; {own.advice[name]}" if name in own.advice else ""


def _proof(agreement: Agreement, prover: str, feature_party: str, feature_nonce: bytes, label_nonce: bytes) -> bytes:
    """Return what only a holder of the same record ids can compute; nonces have a fixed length, names come last."""
    role = b"label" if prover == LABEL_PARTY else b"feature"
    spoken = b"tpsl handshake\0" + role + b"\0" + feature_nonce + label_nonce + feature_party.encode()
    return hmac.digest(agreement.ids, spoken, "sha256")
