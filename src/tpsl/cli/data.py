"""`tpsl data`: check the data of a job; write example data as two files, with the job that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from tpsl.cli.console import JsonFlag, notice, print_json, progress_bar, say, stdout
from tpsl.files import write_atomically

if TYPE_CHECKING:
    from tpsl.data.check import DataReport
    from tpsl.data.writing import Written

app = typer.Typer(
    help="Check the data of a job, or write example data as two files, one for each party, and their job file.",
    no_args_is_help=True,
)

OutOption = Annotated[Path, typer.Option(help="Folder to write to.")]


class Layout(StrEnum):
    """Who holds which features."""

    all = "all"
    natural = "natural"


class Task(StrEnum):
    """What to predict."""

    late = "late"
    delay5 = "delay5"


@app.command()
def check(
    job: Annotated[Path, typer.Argument(help="The job file.")],
    local: Annotated[
        list[Path] | None, typer.Option(help="A party's local file, for its own data or inputs; may be repeated.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Look at the data of a job before anything is released: counts, and what is strange.

    Reads the data of every party that is here, the true labels too where the label party's is: then what is printed
    must stay with the label party. Exit status 1 if there are errors, 0 if there are none or only warnings.
    """
    from tpsl.data.check import check_data
    from tpsl.training import load_job
    from tpsl.training.local import load_local, own_data, party_of

    agreed = load_job(job)
    sources: dict[str, Any] = {}
    for path in local or []:
        mine = load_local(path)
        party = party_of(agreed, mine, None)
        agreed, source = own_data(agreed, party, mine.data), mine.own_parts().source(party)
        sources |= {} if source is None else {party: source}
    with progress_bar("reading") as progress:
        found = check_data(agreed.data, late_labels=agreed.has_late_labels, sources=sources, progress=progress)
    if json:
        print_json(found.as_dict())
    else:
        _show(found)
    if not found.passed:
        raise typer.Exit(1)


def _show(found: DataReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    for party in found.parties:
        say(f"{party.party}: {party.records:,} records in {party.source}")
        table = Table("column", "kind", "missing", "different values", box=SIMPLE_HEAD)
        for column in party.columns:
            distinct = "" if column.distinct is None else f"{column.distinct:,}"
            table.add_row(column.name, column.kind, f"{column.missing:,}", distinct)
        if party.columns:
            stdout.print(table)
    for name in found.not_here:
        say(f"{name}: its data is not here, and was not checked")
    if not (found.parties or found.not_here):
        say("the data of this job come with tpsl: there is nothing to check")
    if found.classes:
        say("labels: " + ", ".join(f"{name}: {count:,}" for name, count in found.classes.items()))
    for finding in found.findings:
        say(f"{finding.level}: {finding.text}")
    say("no errors" if found.passed else "the job cannot run on these data")
    if found.classes:
        notice("true labels were read: this stays with the label party")


@app.command()
def flights(
    out: OutOption = Path("flights"),
    layout: Annotated[
        Layout, typer.Option(help="'natural': each party keeps its own features; 'all': all at the feature party.")
    ] = Layout.natural,
    task: Annotated[Task, typer.Option(help="'late': two classes; 'delay5': five.")] = Task.late,
    rows: Annotated[int | None, typer.Option(min=10, help="Only so many flights, chosen at random.")] = None,
    json: JsonFlag = False,
) -> None:
    """Write NYC flights 2013: airport.parquet (airport and weather) and airline.parquet (the delays)."""
    from tpsl.data.writing import write_flights

    with progress_bar("writing flights") as progress:
        written = write_flights(out, layout.value, task.value, rows, progress)
    _report(out, written, json)


@app.command()
def synthetic(
    out: OutOption = Path("synthetic"),
    rows: Annotated[int, typer.Option(min=10, help="Number of records; memory does not grow with it.")] = 100_000,
    classes: Annotated[int, typer.Option(min=2, max=1000, help="Number of classes.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the records.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Write Criteo-shaped records with a known best possible AUC: feature.parquet and label.parquet."""
    from tpsl.data.config import SyntheticData
    from tpsl.data.writing import write_synthetic

    config = SyntheticData.model_validate({"rows": rows, "classes": classes, "seed": seed})
    with progress_bar("writing records") as progress:
        written = write_synthetic(out, config, progress)
    _report(out, written, json)


@app.command()
def criteo(
    path: Annotated[Path, typer.Argument(help="Kaggle's train.txt, plain or compressed.")],
    out: OutOption = Path("criteo"),
    rows: Annotated[int | None, typer.Option(help="Only the first so many records.")] = None,
    json: JsonFlag = False,
) -> None:
    """Convert Criteo's display advertising file: features for the feature party, clicks for the label party."""
    _convert("criteo", path, out, rows, json)


@app.command()
def avazu(
    path: Annotated[Path, typer.Argument(help="Kaggle's train.csv, plain or compressed.")],
    out: OutOption = Path("avazu"),
    rows: Annotated[int | None, typer.Option(help="Only the first so many records.")] = None,
    json: JsonFlag = False,
) -> None:
    """Convert Avazu's click file: features for the feature party, clicks for the label party."""
    _convert("avazu", path, out, rows, json)


def _convert(source: str, path: Path, out: Path, rows: int | None, json: bool) -> None:
    """Stream a click log of any size to one Parquet file for each party, and write the job that trains on them."""
    from tpsl.data.clicklog import convert
    from tpsl.data.config import AvazuData, CriteoData

    with progress_bar(f"converting {path.name}") as progress:
        if source == "criteo":
            convert(CriteoData(path=path, rows=rows), out, progress)
        else:
            convert(AvazuData(path=path, rows=rows), out, progress)
    _write_job(out, {"source": source, "path": "."}, [out / "feature.parquet", out / "label.parquet"], {}, json)


def _report(out: Path, written: Written, json: bool) -> None:
    """Write the job file beside the data, with paths relative to it, and say what is there."""
    description = written.config.model_dump(mode="json", exclude_defaults=True)
    for file in (*description["features"], description["label"]):
        file["path"] = Path(file["path"]).name
    files = [out / file.path.name for file in (*written.config.features, written.config.label)]
    _write_job(out, {"source": "table", **description}, files, written.facts, json)


def _write_job(out: Path, data: dict[str, Any], files: Sequence[Path], facts: Mapping[str, Any], json: bool) -> None:
    job = out / "job.yaml"
    content = {"data": data, "privacy": {"mechanism": "discrete", "epsilon": 1.0}}
    write_atomically(job, yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode())
    if json:
        print_json({"files": [str(file) for file in files], "job": str(job), **facts})
        return
    for written in [*files, job]:
        say(str(written))
    for name, value in facts.items():
        say(f"{name.replace('_', ' ')}: {value}")
    say(f"train on them with: tpsl train {job}")
