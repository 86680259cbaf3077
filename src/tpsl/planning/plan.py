"""A plan: what a job will take in split training and with its noisy labels handed over, side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tpsl.data.config import OwnData
from tpsl.data.dataset import feature_party_names
from tpsl.planning.counts import Counts, rows_for
from tpsl.planning.memory import peak_bytes
from tpsl.planning.network import ROUND_TRIPS_OF_A_RUN, Network
from tpsl.planning.phases import Phases, TimeModel, step_work
from tpsl.planning.rehearsal import Deployment, Rehearsal, rehearse
from tpsl.planning.stand_in import field_counts, stand_in
from tpsl.planning.traffic import Exchange, exchanges, total
from tpsl.progress import Progress, no_progress
from tpsl.training.job import Job
from tpsl.training.local import Local
from tpsl.training.stages.steps import EMBEDDINGS, GRADIENTS
from tpsl.transport.peers import LABEL_PARTY

_FEW_BATCHES = 8
"""Steps of an epoch in the first rehearsal."""
_LEAST_GROWTH = 2
"""How many times the records of the first rehearsal the second one has at least, if the job has as many."""
_EPOCHS = 2
"""Of a rehearsal, at most."""


@dataclass(frozen=True)
class Assumptions:
    """What is planned for."""

    rows: int
    deployment: Deployment = field(default_factory=Deployment)
    network: Network = field(default_factory=Network)
    hour: float = 0.0
    """The price of a machine for an hour; each worker has one."""
    gigabyte: float = 0.0
    """The price of 10^9 bytes between the parties, either way."""


@dataclass(frozen=True)
class Prediction:
    """What a job takes."""

    job: Job
    counts: Counts
    phases: Mapping[str, float]
    """Seconds of each phase."""
    step: float
    """Seconds of a step."""
    work: Mapping[str, float]
    """Processor seconds of a step at each party: the slower one is what to make faster."""
    seconds_here: float
    """Seconds of all of it on this machine, without a network."""
    to_label: int
    """Bytes on the connections to the label party."""
    from_label: int
    crossing: Sequence[Exchange]
    memory: Mapping[str, int]
    """The most bytes of a process of each party."""
    machine_cost: float
    traffic_cost: float

    @property
    def seconds(self) -> float:
        """Seconds from the commands to their end."""
        return sum(self.phases.values())


def plan(
    job: Job, assumed: Assumptions, seconds: float, folder: Path, progress: Progress = no_progress
) -> list[Prediction]:
    """Predict a job, and the same job with the other exchange where that is possible, by rehearsals of it.

    The job's own comes first. The rehearsals take about so many seconds, if they can be as short; what they write is in
    the folder.
    """
    if job.has_late_labels:
        raise ValueError("a job whose labels arrive while it trains takes as long as they do: plan it with stored ones")
    ways = [job]
    if job.hands_over:
        ways.append(job.with_gradients())
    elif job.needs_split_training() is None:
        ways.append(job.with_labels_handed_over())
    return [
        _predicted(way, assumed, list(_rehearsals(way, assumed, seconds / len(ways), folder / str(number), progress)))
        for number, way in enumerate(ways)
    ]


def check(prediction: Prediction, deployment: Deployment, folder: Path, progress: Progress = no_progress) -> Rehearsal:
    """Run a predicted job on this machine from beginning to end, and count the bytes of its connections.

    All epochs are trained, as they are predicted: `patience` never runs out.
    """
    rows, training = prediction.counts.rows, prediction.job.training
    patient = training.model_copy(update={"patience": training.epochs if training.patience else 0})
    progress(0, 0, f"running the job on {rows:,} records")
    return rehearse(
        stand_in(prediction.job.model_copy(update={"training": patient}), rows, folder / "data", progress),
        deployment,
        folder,
        counted=True,
    )


def _rehearsals(
    job: Job, assumed: Assumptions, seconds: float, folder: Path, progress: Progress
) -> Iterator[Rehearsal]:
    """Yield a short rehearsal and one that takes about as long as there is time."""
    short = job.model_copy(
        update={"training": job.training.model_copy(update={"epochs": min(_EPOCHS, job.training.epochs)})}
    )
    rows = min(assumed.rows, rows_for(job, _FEW_BATCHES))
    first = _rehearsed(short, rows, assumed.deployment, folder / "first", progress)
    yield first
    phases = Phases.of(first)
    growth = max(_LEAST_GROWTH, (seconds - first.seconds - phases.programs) / (first.seconds - phases.programs))
    more = min(assumed.rows, math.ceil(growth * rows))
    if more > rows and not isinstance(job.data, OwnData):  # a source has the records that it has
        yield _rehearsed(short, more, assumed.deployment, folder / "second", progress)


def _rehearsed(job: Job, rows: int, deployment: Deployment, folder: Path, progress: Progress) -> Rehearsal:
    progress(0, 0, f"rehearsing {'the hand-over' if job.hands_over else 'split training'} on {rows:,} records")
    return rehearse(stand_in(job, rows, folder / "data", progress), deployment, folder)


def _predicted(job: Job, assumed: Assumptions, rehearsals: Sequence[Rehearsal]) -> Prediction:
    deployment, counts, model = assumed.deployment, Counts.of(job, assumed.rows), TimeModel.of(rehearsals)
    feature_parties, largest = feature_party_names(job.data), rehearsals[-1]
    crossing = exchanges(job, counts, deployment.pairs)
    to_label, from_label = (
        total(crossing, to_label=up, connections=deployment.connections(job)) for up in (True, False)
    )
    step = _step_seconds(job, counts, crossing, model, assumed)
    phases = replace(model, step=step).seconds(counts) | {
        "network": _other_transfers(crossing, assumed.network) + ROUND_TRIPS_OF_A_RUN * assumed.network.round_trip
    }
    parties = (LABEL_PARTY, *feature_parties)
    fields = field_counts(largest.job, {party: deployment.local.get(party, Local()) for party in parties})
    return Prediction(
        job,
        counts,
        phases,
        step,
        step_work(largest),
        sum(model.seconds(counts).values()),
        to_label,
        from_label,
        crossing,
        {party: peak_bytes(rehearsals, party, counts, fields[party]) for party in parties},
        deployment.machines(len(feature_parties)) * assumed.hour * sum(phases.values()) / 3600,
        assumed.gigabyte * (to_label + from_label) / 1e9,
    )


def _step_seconds(
    job: Job, counts: Counts, crossing: Sequence[Exchange], model: TimeModel, assumed: Assumptions
) -> float:
    if job.hands_over or not counts.steps:
        return model.step
    up, down = (
        sum(each.bytes for each in crossing if each.topic == topic) / counts.steps for topic in (EMBEDDINGS, GRADIENTS)
    )
    parts = job.training.micro_batches * assumed.deployment.pairs
    return assumed.network.step_seconds(model.step, up, down, job.training.staleness, parts)


def _other_transfers(crossing: Sequence[Exchange], network: Network) -> float:
    """Return the seconds of what crosses outside of steps."""
    return sum(each.bytes for each in crossing if each.topic not in (EMBEDDINGS, GRADIENTS)) / network.bandwidth
