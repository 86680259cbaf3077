"""`tpsl check` and `tpsl plan`: what a job will meet in its data and what it will take, before anything is released."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import filesize
from rich.table import Table

from tpsl.cli.console import Report, answer, notice, progress_bar, slim_table
from tpsl.cli.flags import JobArgument, JsonFlag, LocalsOption, SetOption, option
from tpsl.cli.settings import ALL_PARTS, LOCAL, Settings, locals_by_party
from tpsl.data.check import DataReport, check_data
from tpsl.mechanisms.effective_labels import effective_labels
from tpsl.net.peers import LABEL_PARTY
from tpsl.planning.counts import Counts
from tpsl.report.words import MISSING, counted, spoken
from tpsl.training.job import Job
from tpsl.training.method import rare_label_warning_of, resolve_method

if TYPE_CHECKING:
    from tpsl.planning.plan import Prediction


def check(job: JobArgument, changes: SetOption = None, local: LocalsOption = None, json: JsonFlag = False) -> None:
    """Look at the data of a job before anything is released: counts, and what is strange.

    Reads the data of every party that is here, the true labels too where the label party's is: then what is printed
    must stay with the label party. Exit status 1 if there are errors, 0 if there are none or only warnings.
    """
    parties = Settings.of(changes).load_parties(job, local)
    agreed, own = parties.job, parties.own.items()
    sources = {party: source for party, parts in own if (source := parts.source(party)) is not None}
    with progress_bar("reading") as progress:
        found = check_data(agreed.data, late_labels=agreed.has_late_labels, sources=sources, progress=progress)
    worth = None
    if found.passed and found.classes and agreed.trains:
        mechanism, counts = agreed.privacy.build(agreed.classes), list(_training_classes(agreed, found).values())
        worth = round(effective_labels(mechanism, counts, agreed.privacy.draws))
    tell_of_rare_labels(agreed, found)
    answer(json, {**found.as_dict(), "effective_labels": worth}, _for_people(found, agreed, worth))
    if found.classes:
        notice("true labels were read: what is printed stays with the label party")
    if not agreed.hands_over and agreed.needs_split_training() is None:
        notice("the label party has labels alone: with training.exchange: labels these cross, noisy, and no embedding")
    if not found.passed:
        raise typer.Exit(1)


def tell_of_rare_labels(job: Job, found: DataReport) -> None:
    """Add a warning to what was found if noise will drown the rarest class."""
    if found.passed and (warning := rare_label_warning_of(job, _training_classes(job, found))):
        found.warn(LABEL_PARTY, warning)


def _training_classes(job: Job, found: DataReport) -> dict[str, int]:
    """Return about how many training records each class has."""
    return {name: round(count * (1 - job.data.test_fraction)) for name, count in found.classes.items()}


def _for_people(found: DataReport, job: Job, worth: int | None) -> Iterator[str | Table]:
    numbers = ("missing", "different values")
    for party in found.parties:
        yield f"{party.party}: {party.records:,} records in {party.source}"
        rows = [
            (each.name, spoken(each.kind), f"{each.missing:,}", "" if each.distinct is None else f"{each.distinct:,}")
            for each in party.columns
        ]
        if rows:
            yield slim_table(("column", "kind", *numbers), rows, numbers=numbers)
    for name in found.not_here:
        reason = f" ({found.looked_for[name]})" if name in found.looked_for else ""
        yield f"{name}: its data is not here, and was not checked{reason}"
    if not (found.parties or found.not_here):
        yield "the data of this job come with tpsl: there is nothing to check"
    if found.classes:
        yield "labels: " + ", ".join(f"{name}: {count:,}" for name, count in found.classes.items())
    if worth is not None:
        mechanism = job.privacy.build(job.classes)
        yield f"{mechanism}: the noisy labels of the training records are worth {worth:,} clean ones"
    yield from (f"{finding.level}: {finding.text}" for finding in found.findings)
    yield "no errors" if found.passed else "the job cannot run on these data"


def plan(
    job: JobArgument,
    changes: SetOption = None,
    local: LocalsOption = None,
    rows: Annotated[int | None, option("NUMBER", "Records. Default: those of the job's files here.", min=10)] = None,
    bandwidth: Annotated[
        str | None, option("SPEED", "Between the parties, each way: 1Gb/s. Default: no limit.")
    ] = None,
    latency: Annotated[str | None, option("TIME", "Round trip between the parties, as ping says it: 20ms.")] = None,
    run: Annotated[Path, option("FOLDER", "The run whose speed is assumed, or its folder: the last.")] = Path("runs"),
    json: JsonFlag = False,
) -> None:
    """Predict the time and the traffic of a job, split and with its noisy labels handed over.

    Traffic follows from the job, time from the speed of an earlier run. Nothing is trained, and no label of a table is
    read. Example: tpsl plan job.yaml --rows 100000000 --bandwidth 1Gb/s --latency 20ms
    """
    from tpsl.planning.line import Network, bandwidth_of, seconds_of
    from tpsl.planning.plan import Assumptions, last_run, plan, planned_job, records_of

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
    sizes = (("bytes_to_label", True), ("bytes_from_label", False))
    return {
        "exchange": prediction.job.training.exchange,
        **asdict(prediction.counts),
        "steps": prediction.counts.steps,
        "seconds": prediction.seconds,
        "step_seconds": prediction.step,
        "bytes_to_label": prediction.to_label,
        "bytes_from_label": prediction.from_label,
        "crossing": [
            {"party": each.party, "method": each.method, "calls": each.calls}
            | {name: each.bytes(to_label=to_label) for name, to_label in sizes}
            for each in prediction.crossing
        ],
    }


_NAMES = {"gradients": "split", "labels": "handed over"}
"""How a job's noisy labels, or what follows from them, get to the feature parties."""


def _report(job: Path, folder: Path, found: Sequence[Prediction], last: tuple[Path, float] | None) -> Report:
    names = [_NAMES[prediction.job.training.exchange] for prediction in found]
    table = slim_table(("", *names, "because"), _rows(found), numbers=names)
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


def _rows(found: Sequence[Prediction]) -> Iterator[list[str]]:
    """Yield the rows of the table: what, its value for each prediction, and where it comes from."""
    counts = found[0].counts
    yield ["records", *(f"{each.counts.rows:,}" for each in found), f"{counts.train:,} to train on"]
    yield ["time", *(_time(each.seconds) for each in found), f"{counts.steps:,} steps"]
    steps = [MISSING if each.step is None else f"{1000 * each.step:,.1f} ms" for each in found]
    yield ["  a step", *steps, "computing and the line"]
    for to_label in (True, False):
        sizes = [filesize.decimal(round(each.to_label if to_label else each.from_label)) for each in found]
        yield ["to label party" if to_label else "from label party", *sizes, "with TLS"]
        crossing = [[each for each in one.crossing if each.width(to_label=to_label)] for one in found]
        for method in dict.fromkeys(each.method for exchanges in crossing for each in exchanges):
            alike = [[each for each in exchanges if each.method == method] for exchanges in crossing]
            totals = [sum(each.bytes(to_label=to_label) for each in own) for own in alike]
            calls = counted(max(sum(each.calls for each in own) for own in alike), "message")
            yield [f"  {method}", *(filesize.decimal(size) if size else MISSING for size in totals), calls]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    for limit, unit, length in ((120, "s", 1), (7200, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds / 86_400:,.1f} d"
