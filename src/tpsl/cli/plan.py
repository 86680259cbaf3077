"""`tpsl plan`: what a job will take, by arithmetic from the job and the speed of an earlier run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
from tpsl.cli.verbosity import reasons, with_verbose

if TYPE_CHECKING:
    from tpsl.planning.plan import Assumptions, Prediction
    from tpsl.progress import Progress
    from tpsl.training.job import Job
    from tpsl.training.local import Local

_ASSUMED = "assumed"
_ASSUMPTIONS = {
    "rows": Annotated[
        int | None, typer.Option(min=10, help="Records of the job, if not those that its files here have.")
    ],
    "bandwidth": Annotated[
        str | None, typer.Option(help="Of the line between the parties, each way, as 1Gb/s; else no limit.")
    ],
    "latency": Annotated[str | None, typer.Option(help="Round trip between the parties, as ping says it: 20ms.")],
    "price_hour": Annotated[
        float | None, typer.Option(min=0, help="Price of a machine for an hour; each party has one.")
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
    run: Annotated[
        Path, typer.Option(help="The run whose speed is assumed, or a folder: the run in it that ended last.")
    ] = Path("runs"),
    json: JsonFlag = False,
) -> None:
    """Predict the time, traffic and cost of a job, split and with its noisy labels handed over.

    Traffic follows from the job, time from the speed of an earlier run. Nothing is trained, and no label of a table is
    read. Example: tpsl plan job.yaml --rows 100000000 --bandwidth 1Gb/s --latency 20ms
    """
    from tpsl.planning.counts import Counts
    from tpsl.planning.plan import last_run, plan, planned_job
    from tpsl.training.method import resolve_method

    asked = Settings.of(context).load_job(job)
    parties = locals_by_party(asked, local)
    asked, last = planned_job(asked, parties), last_run(run)
    with progress_bar("planning") as progress:
        assumed = _assumptions(context.meta[_ASSUMED], asked, parties, last[1] if last else None, progress)
    asked = resolve_method(asked, lambda: Counts.of(asked, assumed.rows).train, reasons(context, notice))
    found = plan(asked, assumed)
    speed = None if last is None else {"run": str(last[0]), "samples_per_second": last[1]}
    content = {"speed": speed, "predictions": [_as_dict(prediction) for prediction in found]}
    answer(json, content, _report(job, run, found, assumed, last))


def _assumptions(
    given: Mapping[str, Any], job: Job, parties: Mapping[str, Local], speed: float | None, progress: Progress
) -> Assumptions:
    """Return what the options say; what they do not say is as it is here."""
    from tpsl.planning.network import Network, bandwidth_of, seconds_of
    from tpsl.planning.plan import Assumptions, records_of

    bandwidth = bandwidth_of(given["bandwidth"]) if given["bandwidth"] else math.inf
    latency = seconds_of(given["latency"]) if given["latency"] else 0.0
    return Assumptions(
        given["rows"] or records_of(job, parties, progress),
        speed,
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
        "step_seconds": prediction.step,
        "bytes_to_label": prediction.to_label,
        "bytes_from_label": prediction.from_label,
        "crossing": [{name: getattr(each, name) for name in crossing} for each in prediction.crossing],
        "machine_cost": prediction.machine_cost,
        "traffic_cost": prediction.traffic_cost,
    }


_NAMES = {"gradients": "split", "labels": "handed over"}
"""How a job's noisy labels, or what follows from them, get to the feature parties."""


def _report(
    job: Path, folder: Path, found: Sequence[Prediction], assumed: Assumptions, last: tuple[Path, float] | None
) -> Report:
    names = [_NAMES[prediction.job.training.exchange] for prediction in found]
    rows = ((what, *values, because) for what, values, because in _rows(found, assumed))
    table = slim_table(("", *names, "because"), rows, numbers=names)
    if last is None:
        title, speed = "What will cross is known, the time is not", f"unknown: no finished run in {folder}"
    else:
        at_most = "at most " if found[0].job.training.patience else ""
        times = ", ".join(f"{name} {at_most}{_time(each.seconds)}" for name, each in zip(names, found, strict=True))
        title, speed = f"The job will take: {times}", f"{last[1]:,.0f} samples/s, as {last[0]} had"
    facts = {
        "speed": speed,
        "assumed": "both parties' machines as in that run; evaluations as fast as training; all epochs are trained",
        "not counted": "reading, the release, a wide part, checkpoints",
    }
    return Report(title, facts, {"train, in one process": f"tpsl train {job}"}, [table])


Row = tuple[str, list[str], str]


def _rows(found: Sequence[Prediction], assumed: Assumptions) -> Iterator[Row]:
    """Yield the rows of the table: what, its value for each prediction, and where it comes from."""
    counts = found[0].counts
    yield "records", [f"{each.counts.rows:,}" for each in found], f"{counts.train:,} to train on"
    yield "time", [_time(each.seconds) for each in found], f"{counts.steps:,} steps"
    steps = ["–" if each.step is None else f"{1000 * each.step:,.1f} ms" for each in found]
    yield "  a step", steps, "computing and the line"
    yield "to label party", [_size(each.to_label) for each in found], "with TLS"
    yield from _topics(found, to_label=True)
    yield "from label party", [_size(each.from_label) for each in found], "with TLS"
    yield from _topics(found, to_label=False)
    if assumed.hour or assumed.gigabyte:
        costs = ["–" if each.machine_cost is None else f"{each.machine_cost:,.2f}" for each in found]
        yield "machines", costs, f"one for each party at {assumed.hour:g} an hour"
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


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
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
