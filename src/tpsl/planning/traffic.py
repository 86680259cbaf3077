"""What crosses the border in a job, in bytes on the connection: computed from the job, not measured.

Counted are tensors as they cross (`training.wire`), the headers of their frames, and what gRPC, HTTP/2 and TLS add.
What depends on time is left out: heartbeats, at most 600 bytes a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tpsl.data.dataset import feature_party_names
from tpsl.planning.counts import Counts
from tpsl.training.job import Job
from tpsl.training.schedule import TEST_ROWS_AT_ONCE
from tpsl.training.stages.collect import HEAD_EMBEDDINGS
from tpsl.training.stages.evaluate import TEST_EMBEDDINGS
from tpsl.training.stages.hand_over import NOISY_LABELS, packed_bytes
from tpsl.training.stages.statistic import STATISTIC_EMBEDDINGS
from tpsl.training.stages.steps import EMBEDDINGS, GRADIENTS
from tpsl.training.stages.wide import ESTIMATES
from tpsl.transport.frames import PIECE_BYTES, frame_of
from tpsl.transport.messages import TensorMessage, WireType

_PIECE_OVERHEAD = 5 + 9
"""The prefix of a gRPC message, and the header of an HTTP/2 frame."""
_TLS_RECORD, _TLS_OVERHEAD = 1 << 14, 22
"""The most that a record of TLS 1.3 holds, and its header, content type and tag."""
_CONNECTING_TO_LABEL, _CONNECTING_FROM_LABEL = 5_300, 6_500
"""What a connection takes in each direction before the first message: TLS, certificates, the two jobs compared."""


@dataclass(frozen=True)
class Exchange:
    """All messages of one topic between the label party and one feature party."""

    party: str
    topic: str
    to_label: bool
    messages: int
    rows: int
    """Rows of the tensors of all messages together."""
    width: int
    dtype: WireType

    @property
    def bytes(self) -> int:
        """What they take on the connection."""
        if not self.messages:
            return 0
        frame = _frame_bytes(self.topic, self.rows / self.messages, self.width, self.dtype)
        plain = frame + _PIECE_OVERHEAD * math.ceil(frame / PIECE_BYTES)
        return round(self.messages * (plain + _TLS_OVERHEAD * math.ceil(plain / _TLS_RECORD)))


def exchanges(job: Job, counts: Counts) -> list[Exchange]:
    """Return what crosses between the label party and each feature party, each with one worker.

    With `patience` training may end earlier, and less crosses.
    """
    found: list[Exchange] = []
    for party in feature_party_names(job.data):
        found += _handed_over(job, counts, party) if job.hands_over else _split(job, counts, party)
    return [exchange for exchange in found if exchange.messages]


def total(found: Sequence[Exchange], *, to_label: bool, connections: int) -> int:
    """Return the bytes in one direction, those of making the connections included."""
    connecting = _CONNECTING_TO_LABEL if to_label else _CONNECTING_FROM_LABEL
    return connections * connecting + sum(each.bytes for each in found if each.to_label == to_label)


def _split(job: Job, counts: Counts, party: str) -> Iterator[Exchange]:
    width, wire = job.model.cut_width(party), job.training.wire
    if job.model.wide:
        yield Exchange(party, ESTIMATES, False, _parts(counts.trained), counts.trained, 1, wire)
    messages = counts.steps * job.training.micro_batches
    for topic, to_label in ((EMBEDDINGS, True), (GRADIENTS, False)):
        yield Exchange(party, topic, to_label, messages, counts.epochs * counts.trained, width, wire)
    predicted = counts.epochs * _parts(counts.evaluated), counts.epochs * counts.evaluated
    yield Exchange(party, TEST_EMBEDDINGS, True, *predicted, width, wire)
    if counts.statistic:
        messages = _parts(counts.statistic) + _parts(counts.evaluated)
        rows = counts.statistic + counts.evaluated
        yield Exchange(party, STATISTIC_EMBEDDINGS, True, messages, rows, job.head_width(party), wire)
    if job.training.head == "local":
        yield Exchange(party, HEAD_EMBEDDINGS, True, _parts(counts.rows), counts.rows, job.head_width(party), wire)


def _handed_over(job: Job, counts: Counts, party: str) -> Iterator[Exchange]:
    draws, parts = job.privacy.draws, _parts(counts.train)
    width = packed_bytes(job.mechanism, math.ceil(counts.train / parts))
    yield Exchange(party, NOISY_LABELS, False, parts, draws * parts, width, "uint8")


def _parts(records: int) -> int:
    return -(-records // TEST_ROWS_AT_ONCE)


def _frame_bytes(topic: str, rows: float, width: int, dtype: WireType) -> float:
    """Return the size of a frame of so many rows, a mean over messages, in the middle of a job."""
    kind = torch.uint8 if dtype == "uint8" else torch.float32
    one, two = (
        frame_of(TensorMessage(topic, 1 << 14, 0, torch.zeros(count, width, dtype=kind)), 1 << 14, 1 << 14, dtype).size
        for count in (1, 2)
    )
    return one + (rows - 1) * (two - one)
