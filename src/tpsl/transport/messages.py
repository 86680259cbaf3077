"""Every message that crosses the border in a running job; `docs/wire.md` says what each can reveal.

A `TensorMessage` carries numbers: its topic says what they are, and topics belong to the stages of training
(`tpsl.training.stages`), to the alignment (`tpsl.alignment`) or to prediction (`tpsl.prediction.exchange`). The others
carry none: `Announcement` says how many records are to be aligned, or predicted; `Rewind`, `Position` and `Start` agree
on the step to go on from;
`Verdict` says what noisy labels think of an epoch; `Finished` and `Bye` end a job, `Stop` breaks it.
Nothing here can carry a loss, a metric or a count that depends on true labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

WireDtype = Literal["float32", "bfloat16", "float16", "int8"]
"""The numbers of a job's tensors while they cross."""

WireType = Literal[WireDtype, "uint8"]
"""What a channel carries: numbers that are float32 at both ends, or bytes, which are bytes at both ends."""


@dataclass(frozen=True)
class TensorMessage:
    """Either way: rows of numbers for some records, one part of what a step or a stage needs."""

    topic: str
    """What the numbers are; a receiver accepts those topics only that its `Limits` name."""
    step: int
    part: int
    tensor: Tensor


@dataclass(frozen=True)
class Rewind:
    """Label party → feature party: stop what you do and say which steps you can go on from."""

    round: int


@dataclass(frozen=True)
class Position:
    """Feature party → label party: the steps it has checkpoints of (0, the beginning, needs none)."""

    round: int
    checkpoints: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """Label party → feature party: go on after this step; in a prediction, send this part."""

    round: int
    step: int
    division: int = 1
    """Of how many workers each part of a batch has one: a multiple of the number of workers of every party."""


@dataclass(frozen=True)
class Verdict:
    """Label party → feature party, after an epoch: what noisy labels of held-out records say of its weights."""

    step: int
    best: bool
    """They are the best so far: keep them."""
    stop: bool
    """Training ends here; the best weights are the result."""


@dataclass(frozen=True)
class Announcement:
    """Either way, in an alignment: how many records there are, and a random name or a digest for what they belong to.

    A feature party announces its list, the label party all lists, and in the end the common records. In a prediction a
    feature party announces how many records it has, under no name, to a label party that has no list of them.
    """

    identity: bytes
    records: tuple[int, ...]


@dataclass(frozen=True)
class Finished:
    """Feature party → label party: all steps are done and the last checkpoint is on disk."""

    step: int


@dataclass(frozen=True)
class Bye:
    """Label party → feature party → label party → feature party: I have finished, and know that you have."""


@dataclass(frozen=True)
class Stop:
    """Either way: the job cannot go on, with a reason that does not depend on labels."""

    reason: str


PlainMessage = Rewind | Position | Start | Verdict | Announcement | Finished | Bye | Stop
Message = TensorMessage | PlainMessage
