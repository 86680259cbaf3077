"""What a job will take: bytes by arithmetic from the job, time from the speed of an earlier run and the line.

Counted are questions and answers as they cross (`tpsl.net.codec`), tensors in the type of `training.wire`, and what
gRPC, HTTP/2 and TLS add. What depends on time is left out: a question that is asked again because there is no answer
yet, and gRPC's pings, together at most 100 bytes a second.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpsl.data.config import OwnData, SyntheticData, TableData
from tpsl.data.dataset import feature_party_names, load_label_party
from tpsl.net.codec import encode
from tpsl.net.messages import LABEL_PARTY, Message, WireType
from tpsl.net.rounding import wire_bytes
from tpsl.progress import Progress, no_progress
from tpsl.report.known_vaults import runs_in
from tpsl.run.job import Job
from tpsl.run.local import Local, own_data
from tpsl.run.schedule import TEST_ROWS_AT_ONCE
from tpsl.run.stages.collect import HEAD, STATISTIC
from tpsl.run.stages.evaluate import EVALUATE
from tpsl.run.stages.farewell import FINISH
from tpsl.run.stages.hand_over import NOISY_LABELS, packed_bytes
from tpsl.run.stages.prepare import ESTIMATES
from tpsl.run.stages.steps import STEP
from tpsl.tables import DataError
from tpsl.tables.locations import is_there
from tpsl.tables.reading import dialect_of, read_blocks, rows_in_parquet

_CALL_TO_LABEL, _CALL_FROM_LABEL = 61, 66
"""What a unary call adds to its message: HTTP/2 headers that both sides have seen before, and the prefix of gRPC."""
_TENSOR_HEADER = 10
"""What a tensor adds to its message: its shape and its length."""
_TLS_RECORD, _TLS_OVERHEAD = 1 << 14, 22
"""The most that a record of TLS 1.3 holds, and its header, content type and tag."""
_CONNECTING_TO_LABEL, _CONNECTING_FROM_LABEL = 5_050, 5_950
"""What a connection takes in each direction before the first question: TLS, certificates, `Hello` and `Agree`."""
_ROUND_TRIPS_OF_A_RUN = 10
"""Of TLS, the handshake, the agreement on a step and the farewell."""
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


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


@dataclass(frozen=True)
class Network:
    """What a connection to the label party carries, all feature parties together."""

    bandwidth: float = math.inf
    """Bytes in a second, in each direction."""
    round_trip: float = 0.0
    """Seconds."""

    def step_seconds(self, computing: float, up: float, down: float, staleness: int, parts: int) -> float:
        """Return the seconds of a step that sends `up` bytes and then receives `down` bytes, in this many parts.

        Without staleness a step waits for its round trip. Parts of a batch overlap: while one is on its way back, the
        next one is on its way there. With staleness s, s + 1 steps are under way at the same time, until either the
        processors or one direction of the line have no pause left.
        """
        longer, shorter = max(up, down) / self.bandwidth, min(up, down) / self.bandwidth
        alone = computing + self.round_trip + longer + shorter / parts
        return max(alone / (staleness + 1), computing, longer)


def bandwidth_of(text: str) -> float:
    """Return bytes a second of a text as 1Gb/s (bits) or 125MB/s (bytes)."""
    number, prefix, unit = _quantity(text, r"([kMGT]?)(b|bit|B)/s", "a bandwidth, as 1Gb/s or 125MB/s")
    return number * _UNITS[prefix] / (1 if unit == "B" else 8)


def seconds_of(text: str) -> float:
    """Return the seconds of a text as 20ms or 0.02s."""
    number, unit, _ = _quantity(text, r"(us|µs|ms|s)()", "a time, as 20ms or 0.02s")
    return number * _UNITS[unit]


def _quantity(text: str, unit: str, wanted: str) -> tuple[float, str, str]:
    """Return the positive number that a text begins with, and the two parts of the unit behind it."""
    found = re.fullmatch(rf"\s*(\d+\.?\d*|\.\d+)\s*{unit}\s*", text)
    if found is None or not float(found[1]) > 0:
        raise ValueError(f"{text!r} is not {wanted}")
    return float(found[1]), found[2], found[3]


@dataclass(frozen=True)
class Prediction:
    """What a job takes. Seconds, and what is computed from them, are None if no speed is known."""

    job: Job
    counts: Counts
    crossing: Sequence[Exchange]
    to_label: int
    """Bytes on the connections to the label party."""
    from_label: int
    step: float | None
    """Seconds of a step."""
    seconds: float | None
    """Of steps, evaluations and what crosses; not of reading, the release, a wide part and checkpoints."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        sizes = (("bytes_to_label", True), ("bytes_from_label", False))
        return {
            "exchange": self.job.training.exchange,
            **asdict(self.counts),
            "steps": self.counts.steps,
            "seconds": self.seconds,
            "step_seconds": self.step,
            "bytes_to_label": self.to_label,
            "bytes_from_label": self.from_label,
            "crossing": [
                {"party": each.party, "method": each.method, "calls": each.calls}
                | {name: each.bytes(to_label=to_label) for name, to_label in sizes}
                for each in self.crossing
            ],
        }


def plan(job: Job, rows: int, speed: float | None = None, network: Network | None = None) -> list[Prediction]:
    """Predict a job, and the same job with the other exchange where that is possible; the job's own comes first.

    `speed` is training records in a second where the line between the parties is no limit.
    """
    ways = [job]
    if job.hands_over:
        ways.append(job.with_gradients())
    elif job.needs_split_training() is None:
        ways.append(job.with_labels_handed_over())
    return [_predicted(way, Counts.of(way, rows), speed, network or Network()) for way in ways]


def _predicted(job: Job, counts: Counts, speed: float | None, network: Network) -> Prediction:
    crossing, parties = exchanges(job, counts), len(feature_party_names(job.data))
    to_label, from_label = (total(crossing, to_label=up, connections=parties) for up in (True, False))
    step = seconds = None
    if speed is not None:
        step = 0.0 if not counts.batches else counts.trained / counts.batches / speed
        up, down = (sum(each.bytes(to_label=way) for each in crossing if each.method == STEP) for way in (True, False))
        others = sum(each.bytes(to_label=way) for each in crossing if each.method != STEP for way in (True, False))
        if counts.steps and not job.hands_over:
            settings = job.training
            sent = up / counts.steps, down / counts.steps
            step = network.step_seconds(step, *sent, settings.staleness, settings.micro_batches)
        waiting = others / network.bandwidth + _ROUND_TRIPS_OF_A_RUN * network.round_trip
        seconds = counts.steps * step + counts.epochs * counts.evaluated / speed + waiting
    return Prediction(job, counts, crossing, to_label, from_label, step, seconds)


def last_run(folder: Path) -> tuple[Path, float] | None:
    """Return the run in a folder that took steps and ended last, and its training records in a second."""
    found: list[tuple[float, Path, float]] = []
    for path in runs_in(folder):
        with suppress(ValueError, OSError):  # a run that cannot be read says no speed
            for file in (*path.glob("result.json"), *path.glob("*/result.json")):  # over a network a party's alone
                result = json.loads(file.read_bytes())
                if result.get("steps") and result.get("samples_per_second"):
                    found.append((file.stat().st_mtime, path, float(result["samples_per_second"])))
    return max(found)[1:] if found else None


def planned_job(job: Job, local: Mapping[str, Local]) -> Job:
    """Return the job with the files of the parties' local files in it."""
    for party, own in local.items():
        job = own_data(job, party, own.data, own.alignment)
    return job


def records_of(job: Job, local: Mapping[str, Local], progress: Progress = no_progress) -> int:
    """Return how many records a job has, by what is within reach."""
    data = job.data
    if isinstance(data, TableData):
        for file in (*data.features, data.label):
            with suppress(DataError):  # another party's storage may not even answer
                if is_there(file.path):
                    break
        else:
            raise ValueError("no file of the job is within reach: say with --rows how many records it has")
        blocks = read_blocks(file.path, [], dialect_of(file.path), progress=progress)
        return rows_in_parquet(file.path) or sum(block.rows for block in blocks)
    if isinstance(data, SyntheticData):
        return data.rows
    if not isinstance(data, OwnData) and data.rows is not None:
        return data.rows
    source = local.get(LABEL_PARTY, Local()).own_parts().source(LABEL_PARTY)
    return len(load_label_party(data, progress, source=source).records.ids)
