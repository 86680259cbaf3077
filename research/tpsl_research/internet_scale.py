"""A paper exercise: what a job would take that no machine at hand can rehearse, from rates that were measured.

Split training is limited by the line between the companies, by the pairs of workers, or by the line between the workers
of the feature party, whose table lies in the memories of all of them; the slowest decides, since they work at the same
time. With the noisy labels handed over the first limit is gone. Every number is an argument; the defaults are those of
`docs/planning.md`, which says where each comes from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tpsl.planning.traffic import Exchange
from tpsl.training.schedule import TEST_ROWS_AT_ONCE
from tpsl.training.stages.hand_over import NOISY_LABELS
from tpsl.training.stages.steps import EMBEDDINGS, GRADIENTS
from tpsl.transport.messages import WireDtype

_NUMBER_BYTES = 4
_HOUR = 3600


@dataclass(frozen=True)
class Undertaking:
    """What is to be trained."""

    records: int = 10**11
    epochs: int = 1
    batch: int = 65_536
    """Of a pair of workers."""
    cut: int = 128
    wire: WireDtype = "int8"
    outcome_bits: int = 1
    """Of a noisy label; randomised response with two classes."""
    fields: int = 39
    embedding_dim: int = 16
    table_bytes: float = 10e12


@dataclass(frozen=True)
class Means:
    """What it is trained with: rates, and prices in one currency."""

    line: float = 100e9 / 8
    """Bytes a second between the companies, each way."""
    worker_bytes: float = 139 * 2**30
    """Memory of a worker's GPU."""
    worker_line: float = 400e9 / 8
    """Bytes a second between the workers of a party, each way, for each of them."""
    pair_records: float = 4.11e6
    """Records a second of a pair of workers in split training."""
    worker_records: float = 43.8e6
    """Records a second of a worker that has both halves."""
    worker_hour: float = 3.0
    """Price of a worker for an hour."""
    gigabyte: float = 0.08
    """Price of 10^9 bytes between the companies."""


@dataclass(frozen=True)
class Undertaken:
    """What it takes in one way."""

    feature_workers: int
    label_workers: int
    to_label: int
    from_label: int
    line_seconds: float
    """Of what crosses between the companies, on the busier direction."""
    computing_seconds: float
    look_up_seconds: float
    """Of embeddings and their gradients on their way between the workers of the feature party."""
    seconds: float
    machine_cost: float
    traffic_cost: float


def split_training(what: Undertaking, means: Means) -> Undertaken:
    """Return what split training takes: embeddings and gradients of every record cross in every epoch."""
    rows = what.records * what.epochs
    up, down = (
        Exchange("", topic, to_label, math.ceil(rows / what.batch), rows, what.cut, what.wire).bytes
        for topic, to_label in ((EMBEDDINGS, True), (GRADIENTS, False))
    )
    line = max(up, down) / means.line
    feature_workers = _workers(what, means)
    computing = rows / (feature_workers * means.pair_records)
    look_ups = _look_up_seconds(what, means, feature_workers)
    seconds = max(line, computing, look_ups)
    label_workers = math.ceil(rows / seconds / means.pair_records)
    return _undertaken(means, (feature_workers, label_workers), (up, down), (line, computing, look_ups), seconds)


def handed_over(what: Undertaking, means: Means) -> Undertaken:
    """Return what it takes if noisy labels cross once and the feature party trains alone; the label party is done."""
    parts = math.ceil(what.records / TEST_ROWS_AT_ONCE)
    bytes_of_part = math.ceil(TEST_ROWS_AT_ONCE * what.outcome_bits / 8)
    down = Exchange("", NOISY_LABELS, False, parts, parts, bytes_of_part, "uint8").bytes
    workers = _workers(what, means)
    computing = what.records * what.epochs / (workers * means.worker_records)
    look_ups = _look_up_seconds(what, means, workers)
    line = down / means.line
    seconds = line + max(computing, look_ups)
    return _undertaken(means, (workers, 0), (0, down), (line, computing, look_ups), seconds)


@dataclass(frozen=True)
class Vaults:
    """Where the label party keeps its labels: many vaults, each with a range of the ids."""

    records: int = 10**11
    records_of_a_vault: int = 10**9
    at_once: int = 20
    """How many are worked on at the same time, on machines of their own."""
    record_bytes: float = 27.0
    create: float = 100e6 / 32.7
    """Records a second, of one vault."""
    release: float = 100e6 / 5.3
    verify: float = 100e6 / 24.8

    @property
    def count(self) -> int:
        """How many vaults there are."""
        return math.ceil(self.records / self.records_of_a_vault)

    @property
    def bytes(self) -> float:
        """Bytes on disk, of all together."""
        return self.records * self.record_bytes

    def seconds(self, records_a_second: float) -> float:
        """Return how long something takes that a vault does at this rate."""
        return math.ceil(self.count / self.at_once) * self.records_of_a_vault / records_a_second


def _workers(what: Undertaking, means: Means) -> int:
    """Return how many workers hold the table, with a tenth of their memory for all else; SGD keeps no state."""
    return math.ceil(what.table_bytes / (0.9 * means.worker_bytes))


def _look_up_seconds(what: Undertaking, means: Means, workers: int) -> float:
    """Return how long the look-ups take between workers.

    Of each look-up the share of (workers - 1)/workers is at another worker: a row comes in and its gradient goes out
    here, a row goes out and a gradient comes in for each that others look up.
    """
    row_bytes = what.fields * what.embedding_dim * _NUMBER_BYTES
    each_way = 2 * row_bytes * what.records * what.epochs / workers * (workers - 1) / workers
    return each_way / means.worker_line


def _undertaken(
    means: Means,
    workers: tuple[int, int],
    crossing: tuple[int, int],
    limits: tuple[float, float, float],
    seconds: float,
) -> Undertaken:
    machine_cost = sum(workers) * means.worker_hour * seconds / _HOUR
    traffic_cost = means.gigabyte * sum(crossing) / 1e9
    return Undertaken(*workers, *crossing, *limits, seconds, machine_cost, traffic_cost)
