"""`tpsl plan`: what a job will take, by arithmetic from the job and the speed of an earlier run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import Report, answer, notice, progress_bar, slim_table
from tpsl.cli.flags import JobArgument, JsonFlag, LocalsOption, SetOption
from tpsl.cli.settings import ALL_PARTS, LOCAL, Settings, locals_by_party

if TYPE_CHECKING:
    from tpsl.planning.plan import Prediction
    from tpsl.planning.traffic import Exchange


def plan(
    job: JobArgument,
    changes: SetOption = None,
    local: LocalsOption = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=10,
            metavar="NUMBER",
            help="Records of the job, if not those that its files here have.",
            show_default=False,
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="SPEED",
            help="Of the line between the parties, each way, as 1Gb/s; else no limit.",
            show_default=False,
        ),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Round trip between the parties, as ping says it: 20ms.", show_default=False),
    ] = None,
    run: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="The run whose speed is assumed, or a folder: the run in it that ended last."
        ),
    ] = Path("runs"),
    json: JsonFlag = False,
) -> None:
    """Predict the time and the traffic of a job, split and with its noisy labels handed over.

    Traffic follows from the job, time from the speed of an earlier run. Nothing is trained, and no label of a table is
    read. Example: tpsl plan job.yaml --rows 100000000 --bandwidth 1Gb/s --latency 20ms
    """
    from tpsl.planning.counts import Counts
    from tpsl.planning.network import Network, bandwidth_of, seconds_of
    from tpsl.planning.plan import Assumptions, last_run, plan, planned_job, records_of
    from tpsl.training.method import resolve_method

    settings = Settings.of(changes, parts=[part for part in ALL_PARTS if part != LOCAL])
    asked = settings.load_job(job)
    parties = locals_by_party(asked, local)
    asked, last = planned_job(asked, parties), last_run(run)
    network = Network(bandwidth_of(bandwidth) if bandwidth else math.inf, seconds_of(latency) if latency else 0.0)
    with progress_bar("planning") as progress:
        assumed = Assumptions(rows or records_of(asked, parties, progress), last[1] if last else None, network)
    asked = resolve_method(asked, lambda: Counts.of(asked, assumed.rows).train, notice)
    found = plan(asked, assumed)
    speed = None if last is None else {"run": str(last[0]), "samples_per_second": last[1]}
    content = {"speed": speed, "predictions": [_as_dict(prediction) for prediction in found]}
    answer(json, content, _report(job, run, found, last))


def _as_dict(prediction: Prediction) -> dict[str, Any]:
    from dataclasses import asdict

    def crossing(each: Exchange) -> dict[str, Any]:
        both = {f"bytes_{way}_label": each.bytes(to_label=way == "to") for way in ("to", "from")}
        return {"party": each.party, "method": each.method, "calls": each.calls, **both}

    return {
        "exchange": prediction.job.training.exchange,
        **asdict(prediction.counts),
        "steps": prediction.counts.steps,
        "seconds": prediction.seconds,
        "step_seconds": prediction.step,
        "bytes_to_label": prediction.to_label,
        "bytes_from_label": prediction.from_label,
        "crossing": [crossing(each) for each in prediction.crossing],
    }


_NAMES = {"gradients": "split", "labels": "handed over"}
"""How a job's noisy labels, or what follows from them, get to the feature parties."""


def _report(job: Path, folder: Path, found: Sequence[Prediction], last: tuple[Path, float] | None) -> Report:
    names = [_NAMES[prediction.job.training.exchange] for prediction in found]
    rows = ((what, *values, because) for what, values, because in _rows(found))
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


def _rows(found: Sequence[Prediction]) -> Iterator[Row]:
    """Yield the rows of the table: what, its value for each prediction, and where it comes from."""
    counts = found[0].counts
    yield "records", [f"{each.counts.rows:,}" for each in found], f"{counts.train:,} to train on"
    yield "time", [_time(each.seconds) for each in found], f"{counts.steps:,} steps"
    steps = ["–" if each.step is None else f"{1000 * each.step:,.1f} ms" for each in found]
    yield "  a step", steps, "computing and the line"
    yield "to label party", [_size(each.to_label) for each in found], "with TLS"
    yield from _methods(found, to_label=True)
    yield "from label party", [_size(each.from_label) for each in found], "with TLS"
    yield from _methods(found, to_label=False)


def _methods(found: Sequence[Prediction], *, to_label: bool) -> Iterator[Row]:
    """Yield the numbers that cross in one direction, by the question that they belong to."""
    from tpsl.report.words import counted

    crossing = [[each for each in prediction.crossing if each.width(to_label=to_label)] for prediction in found]
    for method in dict.fromkeys(each.method for exchanges in crossing for each in exchanges):
        alike = [[each for each in exchanges if each.method == method] for exchanges in crossing]
        sizes = [_size(sum(each.bytes(to_label=to_label) for each in own)) if own else "–" for own in alike]
        yield f"  {method}", sizes, counted(max(sum(each.calls for each in own) for own in alike), "message")


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
