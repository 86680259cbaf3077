"""What crosses the border: a question of a feature party, or the label party's answer to it.

`docs/wire.md` says for every method which fields it uses and what each can reveal. Nothing here can carry a loss, a
metric or a count that depends on true labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

LABEL_PARTY = "label"
"""The label party's name."""

WireDtype = Literal["float32", "bfloat16", "float16", "int8"]
"""The numbers of a job's tensors while they cross."""

WireType = Literal[WireDtype, "uint8"]
"""What messages carry: numbers that are float32 at both ends, or bytes, which are bytes at both ends."""


@dataclass(frozen=True)
class Message:
    """A question or an answer."""

    step: int = 0
    part: int = 0
    numbers: tuple[int, ...] = ()
    """Whole numbers: checkpoints, numbers of records, a verdict."""
    tensor: Tensor | None = None
    """Rows of numbers for some records."""
    secret: bytes = b""
    """A nonce, a proof, or a name that nobody can guess."""
    fields: tuple[tuple[str, str], ...] = ()
    """The agreement, field by field."""
    text: str = ""
    session: bytes = b""
    number: int = 0
    """Of this question in its session, from 0."""
    pending: bool = False
    """Question: the answer to the same question is awaited. Answer: there is none yet, ask again."""


@dataclass(frozen=True)
class Limits:
    """The messages that are accepted."""

    rows: int = 0
    """The most rows of a tensor."""
    width: int = 0
    """The most numbers in a row."""
    calls: int = 4
    """The most questions of one feature party that may be under way at once."""


@dataclass
class Traffic:
    """What went through to and from one peer so far, each message once: tensor bytes as they cross the wire."""

    bytes_sent: int = 0
    bytes_received: int = 0


def described(party: str) -> str:
    """Return a party's name as sentences use it."""
    return "the label party" if party == LABEL_PARTY else f"feature party {party!r}"
