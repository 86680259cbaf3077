"""How two parties make sure that they hold the same job and the same records in the same order.

`Hello`: the feature party sends its fields and a nonce; the label party compares them and answers with its own fields
and nonce. `Agree`: each proves that its record ids are those of the other, the feature party first: an HMAC over both
nonces under a digest of the ids, which itself is never sent. A recorded proof is worth nothing, since nonces are fresh.
Whatever differs ends in a refusal that names it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tpsl.net.codec import decode, encode
from tpsl.net.failures import BadMessage, NotYet, Refused
from tpsl.net.messages import LABEL_PARTY, Limits, Message, described

RECORD_IDS = "record ids"

NONCE_BYTES = 32


@dataclass(frozen=True)
class Agreement:
    """What both sides must hold: fields that are compared in this order, and a digest of the record ids, kept at home.

    A refusal names the first field that differs, both values, and what helps, if `advice` has it.
    """

    fields: Mapping[str, str]
    ids: bytes = field(repr=False)
    advice: Mapping[str, str] = field(default_factory=dict)
    """What helps where a field differs, by its name; `RECORD_IDS` for the ids."""
    by_party: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """At the label party: further fields, different for each feature party."""
    passing: frozenset[str] = frozenset()
    """Fields in which honest parties differ for a while: a party with another value may try again."""

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError("an agreement needs a digest of the record ids")
        # What the other side could not read is an error here, not there.
        hello = encode(Message(secret=bytes(NONCE_BYTES), fields=tuple(self.fields.items())), "float32")
        decode(hello, Limits(), "float32", sender="this job's agreement")

    def with_party(self, party: str) -> Agreement:
        """Return what the label party must hold in common with this feature party."""
        return replace(self, fields={**self.fields, **self.by_party.get(party, {})}, by_party={})


class Introduction:
    """One handshake, as either side sees it."""

    def __init__(self, me: str, feature_party: str, agreement: Agreement) -> None:
        self._me, self._party, self._agreement = me, feature_party, agreement
        self._other = LABEL_PARTY if me == feature_party else feature_party
        self._mine, self._theirs = secrets.token_bytes(NONCE_BYTES), b""

    def fields(self) -> Message:
        """Return this side's `Hello`: who it is, its fields and its nonce."""
        return Message(text=self._me, secret=self._mine, fields=tuple(self._agreement.fields.items()))

    def compare(self, hello: Message) -> None:
        """Raise Refused unless the other side's `Hello` has the same fields."""
        if len(hello.secret) != NONCE_BYTES:
            raise BadMessage(f"{described(self._other)} sent a nonce of {len(hello.secret)} bytes, not {NONCE_BYTES}")
        self._theirs = hello.secret
        other, own = dict(hello.fields), self._agreement
        for name in dict.fromkeys((*own.fields, *other)):
            values = {self._me: own.fields.get(name), self._other: other.get(name)}
            if values[self._me] != values[self._other]:
                # The label party first, on both sides: both show the same sentence.
                texts = [
                    f"{described(party)} has {'none' if values[party] is None else repr(values[party])}"
                    for party in sorted(values, key=lambda party: party != LABEL_PARTY)
                ]
                kind = NotYet if name in own.passing else Refused
                raise kind(f"{name} differs: {', '.join(texts)}{self._advice(name)}")

    def proof(self) -> bytes:
        """Return this side's proof that it holds the same record ids."""
        return self._proof(self._me, self._mine, self._theirs)

    def is_proven_by(self, proof: bytes) -> bool:
        """Whether this is the other side's proof."""
        expected = self._proof(self._other, self._theirs, self._mine)
        return bool(self._theirs) and hmac.compare_digest(proof, expected)

    def require_proof(self, proof: bytes) -> None:
        """Raise Refused unless this is the other side's proof."""
        if not self.is_proven_by(proof):
            raise Refused(
                f"the record ids differ: {described(self._other)} has other ids, or the same in another order"
                + self._advice(RECORD_IDS)
            )

    def _proof(self, prover: str, of_prover: bytes, of_other: bytes) -> bytes:
        """Return what only a holder of the same record ids can compute; nonces have a fixed length, names come last."""
        role = b"label" if prover == LABEL_PARTY else b"feature"
        spoken = b"tpsl agreement\0" + role + b"\0" + of_prover + of_other + self._party.encode()
        return hmac.digest(self._agreement.ids, spoken, "sha256")

    def _advice(self, name: str) -> str:
        return f"; {self._agreement.advice[name]}" if name in self._agreement.advice else ""
