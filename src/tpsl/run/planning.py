"""What a job takes, by arithmetic: what crosses, from the job alone, and its time, from the speed of an earlier run.

Counted are questions and answers as they cross (`tpsl.net.codec`), tensors in the type of `training.wire`, and what
gRPC, HTTP/2 and TLS add. What depends on time is left out: a question that is asked again because there is no answer
yet, and gRPC's pings, together at most 100 bytes a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tpsl.net.codec import encode
from tpsl.net.messages import Message, WireType
from tpsl.net.rounding import wire_bytes
from tpsl.run.job import Job
from tpsl.run.schedule import TEST_ROWS_AT_ONCE
from tpsl.run.stages.collect import HEAD, STATISTIC
from tpsl.run.stages.evaluate import EVALUATE
from tpsl.run.stages.farewell import FINISH
from tpsl.run.stages.hand_over import NOISY_LABELS, packed_bytes
from tpsl.run.stages.prepare import ESTIMATES
from tpsl.run.stages.steps import STEP

_CALL_TO_LABEL, _CALL_FROM_LABEL = 61, 66
"""What a unary call adds to its message: HTTP/2 headers that both sides have seen before, and the prefix of gRPC."""
_TENSOR_HEADER = 10
"""What a tensor adds to its message: its shape and its length."""
_TLS_RECORD, _TLS_OVERHEAD = 1 << 14, 22
"""The most that a record of TLS 1.3 holds, and its header, content type and tag."""
_CONNECTING_TO_LABEL, _CONNECTING_FROM_LABEL = 5_050, 5_950
"""What a connection takes in each direction before the first question: TLS, certificates, `Hello` and `Agree`."""


@dataclass(frozen=True)
class Counts:
    """What a job does with n records: what `Schedule` says, without an array of all records."""

    rows: int
    train: int
    test: int
    held_out: int
    """Training records whose noisy labels choose the best epoch."""
    statistic: int
    """Training records whose labels leave in the noisy statistic."""
    batches: int
    """Steps of an epoch."""
    epochs: int
    """Epochs of the network; 0 where none is trained. With `patience`: the most."""

    @classmethod
    def of(cls, job: Job, rows: int) -> Counts:
        """Return what a job does with this number of records."""
        settings, test = job.training, round(rows * job.data.test_fraction)
        train = rows - test
        if not 0 < test < rows:
            raise ValueError(f"data.test_fraction {job.data.test_fraction} of {rows} records leaves none of a kind")
        held_out = min(train - 1, round(train * settings.validation))
        statistic = 0 if job.statistic is None else train - held_out
        batches = -(-(train - held_out - statistic) // settings.batch_size)
        return cls(rows, train, test, held_out, statistic, batches, settings.epochs if job.trains else 0)

    @property
    def trained(self) -> int:
        """Records that the network learns from."""
        return self.train - self.held_out - self.statistic

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * self.batches

    @property
    def evaluated(self) -> int:
        """Records that are predicted after each epoch."""
        return self.held_out + self.test


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
        # In the middle of a job: as many bytes for the number of a step.
        question = Message(step=1 << 14, session=bytes(16), number=1 << 14)
        message = question if to_label else Message(step=1 << 14)
        plain: float = len(encode(message, self.dtype)) + (_CALL_TO_LABEL if to_label else _CALL_FROM_LABEL)
        if width := self.width(to_label=to_label):
            plain += _TENSOR_HEADER + wire_bytes((self.rows, width), self.dtype) / self.calls
        return round(self.calls * (plain + _TLS_OVERHEAD * math.ceil(plain / _TLS_RECORD)))


def exchanges(job: Job, counts: Counts) -> list[Exchange]:
    """Return what crosses between the label party and each feature party; with `patience` less may cross."""
    found: list[Exchange] = []
    for party in job.data.feature_parties:
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


@dataclass(frozen=True)
class Prediction:
    """What crosses in a job."""

    job: Job
    counts: Counts
    crossing: Sequence[Exchange]

    @classmethod
    def of(cls, job: Job, rows: int) -> Prediction:
        """Predict a job with this number of records."""
        counts = Counts.of(job, rows)
        return cls(job, counts, exchanges(job, counts))

    def bytes(self, *, to_label: bool) -> int:
        """Return the bytes on all connections to the label party in one direction."""
        return total(self.crossing, to_label=to_label, connections=len(self.job.data.feature_parties))

    def seconds(self, speed: float) -> float:
        """Return the time of all epochs at so many records a second, with evaluations as fast as training."""
        return self.counts.epochs * (self.counts.trained + self.counts.evaluated) / speed

    def as_dict(self, speed: float | None = None) -> dict[str, Any]:
        """Return JSON-able data; without a speed the time is not known."""
        sizes = (("bytes_to_label", True), ("bytes_from_label", False))
        return {
            "exchange": self.job.training.exchange,
            **asdict(self.counts),
            "steps": self.counts.steps,
            "seconds": None if speed is None else self.seconds(speed),
            **{name: self.bytes(to_label=to_label) for name, to_label in sizes},
            "crossing": [
                {"party": each.party, "method": each.method, "calls": each.calls}
                | {name: each.bytes(to_label=to_label) for name, to_label in sizes}
                for each in self.crossing
            ],
        }


def plan(job: Job, rows: int) -> list[Prediction]:
    """Predict a job, and the same job with the other exchange where that is possible; the job's own comes first."""
    ways = [job]
    if job.hands_over:
        ways.append(job.with_gradients())
    elif job.needs_split_training() is None:
        ways.append(job.with_labels_handed_over())
    return [Prediction.of(way, rows) for way in ways]
