"""`tpsl data`: write the built-in data sets as two files, one for each party, with the job that reads them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from tpsl.cli.console import JsonFlag, print_json, progress_bar, say

if TYPE_CHECKING:
    from tpsl.data.writing import Written

app = typer.Typer(
    help="Write example data as two files, one for each party, and the job file that trains on them.",
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
        written = write_flights(
            out, layout.value, task.value, rows, lambda note, done, total: progress(done, total, note)
        )
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
        written = write_synthetic(out, config, lambda note, done, total: progress(done, total, note))
    _report(out, written, json)


def _report(out: Path, written: Written, json: bool) -> None:
    """Write the job file beside the data, with paths relative to it, and say what is there."""
    description = written.config.model_dump(mode="json", exclude_defaults=True)
    for file in (*description["features"], description["label"]):
        file["path"] = Path(file["path"]).name
    job = out / "job.yaml"
    content = {"data": {"source": "table", **description}, "privacy": {"mechanism": "discrete", "epsilon": 1.0}}
    job.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    files = [str(file.path) for file in (*written.config.features, written.config.label)]
    if json:
        print_json({"files": files, "job": str(job), **written.facts})
        return
    for file_name in [*files, str(job)]:
        say(file_name)
    for name, value in written.facts.items():
        say(f"{name.replace('_', ' ')}: {value}")
    say(f"train on them with: tpsl train {job}")
