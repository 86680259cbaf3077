"""`tpsl data`: write the built-in data sets as two files, one for each party, with the job that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from tpsl.cli.console import JsonFlag, print_json, progress_bar, say
from tpsl.files import write_atomically

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
