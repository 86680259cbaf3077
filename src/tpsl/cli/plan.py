"""`tpsl plan`: what a job will take, predicted by a rehearsal of its own commands on this machine."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import JsonFlag, Report, answer, notice, progress_bar, slim_table
from tpsl.cli.settings import (
    ALL_PARTS,
    LOCAL,
    JobArgument,
    LocalsOption,
    Settings,
    locals_by_party,
    settings_command,
)
from tpsl.cli.shared_options import with_options
from tpsl.cli.termination import stoppable
from tpsl.cli.verbosity import reasons, with_verbose
from tpsl.planning.machine import machine, machine_text

if TYPE_CHECKING:
    from rich.table import Table

    from tpsl.planning.plan import Assumptions, Prediction
    from tpsl.planning.rehearsal import Rehearsal
    from tpsl.progress import Progress
    from tpsl.training.job import Job
    from tpsl.training.local import Local

_ASSUMED = "assumed"
_ASSUMPTIONS = {
    "rows": Annotated[
        int | None, typer.Option(min=10, help="Records of the job, if not those that its files here have.")
    ],
    "workers": Annotated[
        str | None, typer.Option(metavar="LxF", help="Workers of the label party and of each feature party, as 2x4.")
    ],
    "bandwidth": Annotated[
        str | None, typer.Option(help="Of the line between the parties, each way, as 1Gb/s; else as on this machine.")
    ],
    "latency": Annotated[str | None, typer.Option(help="Round trip between the parties, as ping says it: 20ms.")],
    "price_hour": Annotated[
        float | None, typer.Option(min=0, help="Price of a machine for an hour; each worker has one.")
    ],
    "price_gb": Annotated[
        float | None, typer.Option(min=0, help="Price of a gigabyte (10^9 bytes) between the parties.")
    ],
}
_OF_THE_JOB = settings_command(*(part for part in ALL_PARTS if part != LOCAL))
COMMAND = with_options(_ASSUMPTIONS, _ASSUMED, with_verbose(_OF_THE_JOB))


def plan(
    context: typer.Context,
    job: JobArgument,
    local: LocalsOption = None,
    seconds: Annotated[float, typer.Option(min=0, help="How long to rehearse, about.")] = 60,
    check: Annotated[bool, typer.Option("--check", help="Then run all of the job here, and compare.")] = False,
    json: JsonFlag = False,
) -> None:
    """Predict the time, traffic, memory and cost of a job, split and with its noisy labels handed over.

    The job's own commands are rehearsed on this machine for about a minute; no true label of a table is read, nothing
    is kept. Example: tpsl plan job.yaml --rows 100000000 --bandwidth 1Gb/s --latency 20ms
    """
    import tempfile

    from tpsl.planning.counts import Counts
    from tpsl.planning.plan import check as run_all
    from tpsl.planning.plan import plan
    from tpsl.planning.stand_in import planned_job
    from tpsl.training.method import settled

    asked = Settings.of(context).load_job(job)
    parties = locals_by_party(asked, local)
    asked = planned_job(asked, parties)
    with (
        stoppable("a plan keeps nothing: the same command begins again"),
        tempfile.TemporaryDirectory(prefix="tpsl-plan-") as name,
        progress_bar("planning") as progress,
    ):
        assumed = _assumptions(context.meta[_ASSUMED], asked, parties, progress)
        asked = settled(asked, lambda: Counts.of(asked, assumed.rows).train, reasons(context, notice))
        found = plan(asked, assumed, seconds, Path(name), progress)
        ran = run_all(found[0], assumed.deployment, Path(name) / "check", progress) if check else None
    compared = [] if ran is None else list(_compared(found[0], ran))
    content: dict[str, Any] = {"machine": machine(), "predictions": [_as_dict(prediction) for prediction in found]}
    if compared:
        content["check"] = [
            {"what": what, "predicted": predicted, "measured": measured} for what, predicted, measured, _ in compared
        ]
    answer(json, content, _report(job, found, _tables(found, assumed, compared), checked=check))


def _assumptions(given: Mapping[str, Any], job: Job, parties: Mapping[str, Local], progress: Progress) -> Assumptions:
    """Return what the options say; what they do not say is as it is here."""
    from tpsl.planning.network import Network, bandwidth_of, seconds_of
    from tpsl.planning.plan import Assumptions
    from tpsl.planning.rehearsal import Deployment
    from tpsl.planning.stand_in import records_of

    workers = re.fullmatch(r"([1-9]\d{0,3})[x×]([1-9]\d{0,3})", given["workers"] or "1x1")
    if workers is None:
        raise ValueError(f"--workers: {given['workers']!r} is not LxF, as 2x4 for 2 and 4 workers")
    bandwidth = bandwidth_of(given["bandwidth"]) if given["bandwidth"] else math.inf
    latency = seconds_of(given["latency"]) if given["latency"] else 0.0
    return Assumptions(
        given["rows"] or records_of(job, parties, progress),
        Deployment(parties, int(workers[1]), int(workers[2])),
        Network(bandwidth, latency),
        given["price_hour"] or 0.0,
        given["price_gb"] or 0.0,
    )


def _as_dict(prediction: Prediction) -> dict[str, Any]:
    from dataclasses import asdict

    crossing = ("party", "topic", "to_label", "messages", "bytes")
    return {
        "exchange": prediction.job.training.exchange,
        **asdict(prediction.counts),
        "steps": prediction.counts.steps,
        "seconds": prediction.seconds,
        "seconds_here": prediction.seconds_here,
        "phases": prediction.phases,
        "step_seconds": prediction.step,
        "step_work_seconds": prediction.work,
        "bytes_to_label": prediction.to_label,
        "bytes_from_label": prediction.from_label,
        "crossing": [{name: getattr(each, name) for name in crossing} for each in prediction.crossing],
        "memory_bytes": prediction.memory,
        "machine_cost": prediction.machine_cost,
        "traffic_cost": prediction.traffic_cost,
    }


Comparison = tuple[str, float, float, Callable[[float], str]]


def _compared(prediction: Prediction, ran: Rehearsal) -> Iterator[Comparison]:
    """Yield what was predicted for this machine, and what was measured on it."""
    assert ran.carried is not None
    yield "time", prediction.seconds_here, ran.seconds, _time
    for what, predicted, measured in zip(
        ("to label party", "from label party"),
        (prediction.to_label, prediction.from_label),
        ran.carried,
        strict=True,
    ):
        yield what, predicted, measured, _size
    for party, predicted in prediction.memory.items():
        yield f"memory of {party}", predicted, ran.own_bytes[party], _size


_NAMES = {"gradients": "split", "labels": "handed over"}
"""How a job's noisy labels, or what follows from them, get to the feature parties."""


def _report(job: Path, found: Sequence[Prediction], tables: Sequence[str | Table], *, checked: bool) -> Report:
    at_most = "at most " if found[0].job.training.patience else ""
    times = (f"{_NAMES[each.job.training.exchange]} {at_most}{_time(each.seconds)}" for each in found)
    steps = {} if checked else {"run it here and compare": f"tpsl plan {job} --check"}
    return Report(
        f"The job will take: {', '.join(times)}",
        {"by a rehearsal on": machine_text()},
        {**steps, "train, in one process": f"tpsl train {job}"},
        tables,
    )


def _tables(found: Sequence[Prediction], assumed: Assumptions, compared: Sequence[Comparison]) -> list[str | Table]:
    names = [_NAMES[prediction.job.training.exchange] for prediction in found]
    rows = ((what, *values, because) for what, values, because in _rows(found, assumed))
    tables: list[str | Table] = [slim_table(("", *names, "because"), rows, numbers=names)]
    if compared:
        numbers = ("predicted", "measured", "ratio")
        checks = (
            (what, shown(predicted), shown(measured), f"{predicted / measured:.3f}")
            for what, predicted, measured, shown in compared
        )
        tables += ["the job, run on this machine", slim_table(("", *numbers), checks, numbers=numbers)]
    return tables


Row = tuple[str, list[str], str]


def _rows(found: Sequence[Prediction], assumed: Assumptions) -> Iterator[Row]:
    """Yield the rows of the table: what, its value for each prediction, and where it comes from."""
    parties, counts = list(found[0].memory), found[0].counts
    yield "records", [f"{each.counts.rows:,}" for each in found], f"{counts.train:,} to train on"
    yield "time", [_time(each.seconds) for each in found], "at most" if found[0].job.training.patience else ""
    reasons = {
        "programs": "start and end",
        "set-up": "by record",
        **({"wide part": "by fitted record"} if found[0].job.model.wide else {}),
        "steps": f"{counts.steps:,} of " + " or ".join(f"{1000 * each.step:,.1f} ms" for each in found),
        "evaluations": f"{counts.epochs} of {counts.evaluated:,} records",
        "checkpoints": f"{counts.checkpoints:,}",
        "end": "by record",
        "network": "beside the steps",
    }
    for phase, because in reasons.items():
        yield f"  {phase}", [_time(each.phases[phase]) for each in found], because
    for party in parties:
        yield f"work of {party}", [_work(each, party) for each in found], "processor, a step"
    yield "to label party", [_size(each.to_label) for each in found], "with TLS"
    yield from _topics(found, to_label=True)
    yield "from label party", [_size(each.from_label) for each in found], "with TLS"
    yield from _topics(found, to_label=False)
    for party in parties:
        yield f"memory of {party}", [_size(each.memory[party]) for each in found], "a process"
    if assumed.hour or assumed.gigabyte:
        machines = assumed.deployment.machines(len(parties) - 1)
        yield "machines", [f"{each.machine_cost:,.2f}" for each in found], f"{machines} at {assumed.hour:g} an hour"
        yield "traffic", [f"{each.traffic_cost:,.2f}" for each in found], f"{assumed.gigabyte:g} a gigabyte"


def _topics(found: Sequence[Prediction], *, to_label: bool) -> Iterator[Row]:
    """Yield what crosses in one direction, topic by topic."""
    from tpsl.report.words import counted

    crossing = [[each for each in prediction.crossing if each.to_label == to_label] for prediction in found]
    for topic in dict.fromkeys(each.topic for exchanges in crossing for each in exchanges):
        alike = [[each for each in exchanges if each.topic == topic] for exchanges in crossing]
        sizes = [_size(sum(each.bytes for each in exchanges)) if exchanges else "–" for exchanges in alike]
        yield (
            f"  {topic}",
            sizes,
            counted(max(sum(each.messages for each in exchanges) for exchanges in alike), "message"),
        )


def _work(prediction: Prediction, party: str) -> str:
    return f"{1000 * prediction.work[party]:,.1f} ms" if party in prediction.work else "–"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:,.1f} min"
    return f"{seconds / 3600:,.1f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:,.1f} d"


def _size(count: float) -> str:
    for name, unit in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= unit:
            return f"{_three_digits(count / unit)} {name}"
    return f"{_three_digits(count / 1e3)} kB"


def _three_digits(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
