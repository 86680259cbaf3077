"""`tpsl plan`: what a job will take, predicted by a rehearsal of its own commands on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.bench.machine import machine
from tpsl.cli.console import JsonFlag, answer, notice, progress_bar
from tpsl.cli.settings import ALL_PARTS, LOCAL, JobArgument, LocalsOption, Settings, settings_command
from tpsl.cli.termination import stoppable

if TYPE_CHECKING:
    from rich.table import Table

    from tpsl.planning.plan import Assumptions, Prediction
    from tpsl.planning.rehearsal import Deployment, Rehearsal
    from tpsl.training.local import Local

COMMAND = settings_command(*(part for part in ALL_PARTS if part != LOCAL))


def plan(
    context: typer.Context,
    job: JobArgument,
    local: LocalsOption = None,
    rows: Annotated[
        int | None, typer.Option(min=10, help="Records of the job, if not those that its files here have.")
    ] = None,
    workers: Annotated[
        str, typer.Option(metavar="LxF", help="Workers of the label party and of each feature party.")
    ] = "1x1",
    bandwidth: Annotated[
        str | None, typer.Option(help="Of the line between the parties, each way, as 1Gb/s; else as on this machine.")
    ] = None,
    latency: Annotated[str | None, typer.Option(help="Round trip between the parties, as ping says it: 20ms.")] = None,
    price_hour: Annotated[float, typer.Option(min=0, help="Price of a machine for an hour; each worker has one.")] = 0,
    price_gb: Annotated[float, typer.Option(min=0, help="Price of a gigabyte (10^9 bytes) between the parties.")] = 0,
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
    from tpsl.planning.network import Network, bandwidth_of, seconds_of
    from tpsl.planning.plan import Assumptions, plan
    from tpsl.planning.plan import check as run_all
    from tpsl.planning.stand_in import planned_job, records_of
    from tpsl.training.method import settled

    parties = _locals(local)
    asked = planned_job(Settings.of(context).load_job(job), parties)
    network = Network(
        *([bandwidth_of(bandwidth)] if bandwidth else []), **({"round_trip": seconds_of(latency)} if latency else {})
    )
    with (
        stoppable("a plan keeps nothing: the same command begins again"),
        tempfile.TemporaryDirectory(prefix="tpsl-plan-") as name,
        progress_bar("planning") as progress,
    ):
        records = rows or records_of(asked, parties, progress)
        if asked.method == "auto":
            asked = settled(asked, Counts.of(asked, records).train, notice)
        assumed = Assumptions(records, _deployment(workers, parties), network, price_hour, price_gb)
        found = plan(asked, assumed, seconds, Path(name), progress)
        ran = run_all(found[0], assumed.deployment, Path(name) / "check", progress) if check else None
    content: dict[str, Any] = {"machine": machine(), "predictions": [_as_dict(prediction) for prediction in found]}
    compared = [] if ran is None else list(_compared(found[0], ran))
    if ran is not None:
        content["check"] = [
            {"what": what, "predicted": predicted, "measured": measured} for what, predicted, measured, _ in compared
        ]
    answer(json, content, _tables(found, assumed, compared))


def _locals(files: Sequence[Path] | None) -> dict[str, Local]:
    """Return the local files by party."""
    from tpsl.training.local import load_local

    found = {}
    for file in files or ():
        local = load_local(file)
        if local.party is None:
            raise ValueError(f"{file}: names no party; where one process plans for all, each file has `party`")
        found[local.party] = local
    return found


def _deployment(workers: str, parties: Mapping[str, Local]) -> Deployment:
    from tpsl.planning.rehearsal import Deployment

    counts = re.fullmatch(r"([1-9]\d{0,3})[x×]([1-9]\d{0,3})", workers)
    if counts is None:
        raise ValueError(f"--workers: {workers!r} is not LxF, as 2x4 for 2 of the label party and 4 of a feature party")
    return Deployment(parties, int(counts[1]), int(counts[2]))


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
        yield f"memory of {party}", predicted, ran.peak_bytes[party], _size


def _tables(found: Sequence[Prediction], assumed: Assumptions, compared: Sequence[Comparison]) -> Iterator[str | Table]:
    from rich.table import Table

    yield ", ".join(f"{name} {value}" for name, value in machine().items())
    names = {"gradients": "split training", "labels": "labels handed over"}
    table = Table("", *(names[prediction.job.training.exchange] for prediction in found), "because")
    for what, value, because in _rows(found, assumed):
        table.add_row(what, *(value(prediction) for prediction in found), because)
    yield table
    if compared:
        table = Table("", "predicted", "measured", "ratio", title="the job, run on this machine")
        for what, predicted, measured, shown in compared:
            table.add_row(what, shown(predicted), shown(measured), f"{predicted / measured:.3f}")
        yield table


Row = tuple[str, Callable[["Prediction"], str], str]


def _rows(found: Sequence[Prediction], assumed: Assumptions) -> Iterator[Row]:
    """Yield the rows of the table: what, its value for a prediction, and where it comes from."""
    first = found[0]
    counts = first.counts
    yield "records", lambda each: f"{each.counts.rows:,}", f"{counts.train:,} to train on"
    yield "time", lambda each: _time(each.seconds), ""
    reasons = {
        "programs": "start and end",
        "set-up": "by record",
        "steps": f"{counts.steps:,} of " + " or ".join(f"{1000 * each.step:,.1f} ms" for each in found),
        "evaluations": f"{counts.epochs} of {counts.evaluated:,} records",
        "checkpoints": f"{counts.checkpoints:,}",
        "end": "by record",
        "network": "beside the steps",
    }
    for phase, because in reasons.items():
        yield f"  {phase}", lambda each, phase=phase: _time(each.phases[phase]), because  # type: ignore[misc]
    for party in first.memory:
        yield f"work of {party}", lambda each, party=party: _work(each, party), "processor, a step"  # type: ignore[misc]
    yield "to label party", lambda each: _size(each.to_label), "with TLS"
    yield "from label party", lambda each: _size(each.from_label), "with TLS"
    for party in first.memory:
        yield f"memory of {party}", lambda each, party=party: _size(each.memory[party]), "a process"  # type: ignore[misc]
    if assumed.hour or assumed.gigabyte:
        machines = assumed.deployment.machines(len(first.memory) - 1)
        yield "machines", lambda each: f"{each.machine_cost:,.2f}", f"{machines} at {assumed.hour:g} an hour"
        yield "traffic", lambda each: f"{each.traffic_cost:,.2f}", f"{assumed.gigabyte:g} a gigabyte"


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
            return f"{count / unit:,.2f} {name}"
    return f"{count / 1e3:,.1f} kB"
