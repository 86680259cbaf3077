"""A plan: what a job will take, by arithmetic from the job and the speed of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tpsl.data.config import OwnData, SyntheticData, TableData
from tpsl.data.dataset import feature_party_names, load_label_party
from tpsl.net.peers import LABEL_PARTY
from tpsl.planning.counts import Counts
from tpsl.planning.line import ROUND_TRIPS_OF_A_RUN, Network
from tpsl.planning.traffic import Exchange, exchanges, total
from tpsl.progress import Progress, no_progress
from tpsl.report.known_vaults import runs_in
from tpsl.tables import DataError
from tpsl.tables.locations import Location, is_there
from tpsl.tables.reading import dialect_of, read_blocks, rows_in_parquet
from tpsl.training.job import Job
from tpsl.training.local import Local, own_data
from tpsl.training.run_folder import RunFolder
from tpsl.training.stages.steps import STEP


@dataclass(frozen=True)
class Assumptions:
    """What is planned for."""

    rows: int
    speed: float | None = None
    """Training records in a second where the line between the parties is no limit; None: unknown."""
    network: Network = field(default_factory=Network)


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


def plan(job: Job, assumed: Assumptions) -> list[Prediction]:
    """Predict a job, and the same job with the other exchange where that is possible; the job's own comes first."""
    if job.has_late_labels:
        raise ValueError("a job whose labels arrive while it trains takes as long as they do: plan it with stored ones")
    ways = [job]
    if job.hands_over:
        ways.append(job.with_gradients())
    elif job.needs_split_training() is None:
        ways.append(job.with_labels_handed_over())
    return [_predicted(way, assumed) for way in ways]


def last_run(folder: Path) -> tuple[Path, float] | None:
    """Return the run in a folder that took steps and ended last, and its training records in a second."""
    found: list[tuple[float, Path, float]] = []
    for path in runs_in(folder):
        with suppress(ValueError, OSError):  # a run that cannot be read says no speed
            run = RunFolder(path)
            ended = {path: run.result()} | {
                run.party(name): run.party_result(name) for name in feature_party_names(run.job().data)
            }
            for place, result in ended.items():
                if result is not None and result.steps:
                    found.append(((place / "result.json").stat().st_mtime, path, result.samples_per_second))
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
        return _records_in_files(data, progress)
    if isinstance(data, SyntheticData):
        return data.rows
    if not isinstance(data, OwnData) and data.rows is not None:
        return data.rows
    source = local.get(LABEL_PARTY, Local()).own_parts().source(LABEL_PARTY)
    return len(load_label_party(data, progress, source=source).records.ids)


def _records_in_files(data: TableData, progress: Progress) -> int:
    for file in (*data.features, data.label):
        if _is_within_reach(file.path):
            blocks = read_blocks(file.path, [], dialect_of(file.path), progress=progress)
            return rows_in_parquet(file.path) or sum(block.rows for block in blocks)
    raise ValueError("no file of the job is within reach: say with --rows how many records it has")


def _is_within_reach(location: Location) -> bool:
    """Return whether a table can be read here: another party's storage may not even answer."""
    try:
        return is_there(location)
    except DataError:
        return False


def _predicted(job: Job, assumed: Assumptions) -> Prediction:
    counts, parties = Counts.of(job, assumed.rows), len(feature_party_names(job.data))
    crossing = exchanges(job, counts)
    to_label, from_label = (total(crossing, to_label=up, connections=parties) for up in (True, False))
    step = seconds = None
    if assumed.speed is not None:
        step = _step_seconds(job, counts, crossing, assumed.speed, assumed.network)
        evaluations = counts.epochs * counts.evaluated / assumed.speed
        seconds = counts.steps * step + evaluations + _other_transfers(crossing, assumed.network)
    return Prediction(job, counts, crossing, to_label, from_label, step, seconds)


def _step_seconds(job: Job, counts: Counts, crossing: Sequence[Exchange], speed: float, network: Network) -> float:
    if not counts.batches:
        return 0.0
    computing = counts.trained / counts.batches / speed
    if job.hands_over or not counts.steps:
        return computing
    up, down = (
        sum(each.bytes(to_label=to_label) for each in crossing if each.method == STEP) / counts.steps
        for to_label in (True, False)
    )
    return network.step_seconds(computing, up, down, job.training.staleness, job.training.micro_batches)


def _other_transfers(crossing: Sequence[Exchange], network: Network) -> float:
    """Return the seconds of what crosses outside of steps."""
    others = sum(
        each.bytes(to_label=to_label) for each in crossing if each.method != STEP for to_label in (True, False)
    )
    return others / network.bandwidth + ROUND_TRIPS_OF_A_RUN * network.round_trip
