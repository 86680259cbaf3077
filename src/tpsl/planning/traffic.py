"""What crosses the border in a job, in bytes on the connection: computed from the job, not measured.

Counted are questions and answers as they cross (`tpsl.net.codec`), tensors in the type of `training.wire`, and what
gRPC, HTTP/2 and TLS add. What depends on time is left out: a question that is asked again because there is no answer
yet, and gRPC's pings, together at most 100 bytes a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tpsl.data.dataset import feature_party_names
from tpsl.net.codec import encode
from tpsl.net.messages import Message, WireType
from tpsl.planning.counts import Counts
from tpsl.training.job import Job
from tpsl.training.schedule import TEST_ROWS_AT_ONCE
from tpsl.training.stages.collect import HEAD, STATISTIC
from tpsl.training.stages.evaluate import EVALUATE
from tpsl.training.stages.farewell import FINISH
from tpsl.training.stages.hand_over import NOISY_LABELS, packed_bytes
from tpsl.training.stages.prepare import ESTIMATES
from tpsl.training.stages.steps import STEP

_CALL_TO_LABEL, _CALL_FROM_LABEL = 61, 66
"""What a unary call adds to its message: HTTP/2 headers that both sides have seen before, and the prefix of gRPC."""
_TLS_RECORD, _TLS_OVERHEAD = 1 << 14, 22
"""The most that a record of TLS 1.3 holds, and its header, content type and tag."""
_CONNECTING_TO_LABEL, _CONNECTING_FROM_LABEL = 5_050, 5_950
"""What a connection takes in each direction before the first question: TLS, certificates, `Hello` and `Agree`."""
_SESSION = bytes(16)


@dataclass(frozen=True)
class Exchange:
    """All questions of one kind from a feature party, and their answers."""

    party: str
    method: str
    calls: int
    dtype: WireType
    rows: int = 0
    """Rows of the tensors of all calls together, in each direction that has any."""
    up: int = 0
    """How many numbers a row of a question has; 0: no tensor crosses."""
    down: int = 0
    """The same of an answer."""

    def width(self, *, to_label: bool) -> int:
        """Return how many numbers a row has in one direction."""
        return self.up if to_label else self.down

    def bytes(self, *, to_label: bool) -> int:
        """Return what they take on the connection in one direction."""
        if not self.calls:
            return 0
        # In the middle of a job: as many bytes for the number of a step.
        message = Message(step=1 << 14, session=_SESSION, number=1 << 14) if to_label else Message(step=1 << 14)
        frame = _frame_bytes(message, self.rows / self.calls, self.width(to_label=to_label), self.dtype)
        plain = frame + (_CALL_TO_LABEL if to_label else _CALL_FROM_LABEL)
        return round(self.calls * (plain + _TLS_OVERHEAD * math.ceil(plain / _TLS_RECORD)))


def exchanges(job: Job, counts: Counts) -> list[Exchange]:
    """Return what crosses between the label party and each feature party.

    With `patience` training may end earlier, and less crosses.
    """
    found: list[Exchange] = []
    for party in feature_party_names(job.data):
        found += _handed_over(job, counts, party) if job.hands_over else _split(job, counts, party)
        found.append(Exchange(party, FINISH, 2, job.wire_type))
    return [exchange for exchange in found if exchange.calls]


def total(found: Sequence[Exchange], *, to_label: bool, connections: int) -> int:
    """Return the bytes in one direction, those of making the connections included."""
    connecting = _CONNECTING_TO_LABEL if to_label else _CONNECTING_FROM_LABEL
    return connections * connecting + sum(each.bytes(to_label=to_label) for each in found)


def _split(job: Job, counts: Counts, party: str) -> Iterator[Exchange]:
    width, head, wire = job.model.cut_width(party), job.head_width(party), job.training.wire
    if job.model.wide:
        yield Exchange(party, ESTIMATES, _parts(counts.trained), wire, counts.trained, down=1)
    calls = counts.steps * job.training.micro_batches
    yield Exchange(party, STEP, calls, wire, counts.epochs * counts.trained, width, width)
    evaluated, rows = counts.epochs * _parts(counts.evaluated), counts.epochs * counts.evaluated
    yield Exchange(party, EVALUATE, evaluated, wire, rows, width)
    if counts.statistic:
        calls = _parts(counts.statistic) + _parts(counts.evaluated)
        yield Exchange(party, STATISTIC, calls, wire, counts.statistic + counts.evaluated, head)
    if job.training.head == "local":
        yield Exchange(party, HEAD, _parts(counts.rows), wire, counts.rows, head)


def _handed_over(job: Job, counts: Counts, party: str) -> Iterator[Exchange]:
    draws, parts = job.privacy.draws, _parts(counts.train)
    width = packed_bytes(job.mechanism, math.ceil(counts.train / parts))
    yield Exchange(party, NOISY_LABELS, parts, "uint8", draws * parts, down=width)


def _parts(records: int) -> int:
    return -(-records // TEST_ROWS_AT_ONCE)


def _frame_bytes(message: Message, rows: float, width: int, dtype: WireType) -> float:
    """Return the size of a frame of so many rows, a mean over messages."""
    if not width:
        return len(encode(message, dtype))
    kind = torch.uint8 if dtype == "uint8" else torch.float32
    one, two = (
        len(encode(Message(message.step, session=message.session, number=message.number, tensor=tensor), dtype))
        for tensor in (torch.zeros(1, width, dtype=kind), torch.zeros(2, width, dtype=kind))
    )
    return one + (rows - 1) * (two - one)
