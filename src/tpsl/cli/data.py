"""`tpsl data`: check the data of a job; write example data as two files, with the job that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tpsl.cli.console import Facts, JsonFlag, Report, answer, progress_bar
from tpsl.cli.settings import Settings, settings_command
from tpsl.files import as_yaml, write_atomically

if TYPE_CHECKING:
    from tpsl.cli.example_data import Written
    from tpsl.data.config import AnyData

    Config = TypeVar("Config", bound=AnyData)

app = typer.Typer(
    help="Check the data of a job, or write example data as two files, one for each party, and their job file.",
    no_args_is_help=True,
)

OutOption = Annotated[Path, typer.Option(help="Folder to write to.")]


@app.command(cls=settings_command("data", layout="data.layout", task="data.task", rows="data.rows"))
def flights(context: typer.Context, out: OutOption = Path("flights"), json: JsonFlag = False) -> None:
    """Write NYC flights 2013: airport.parquet (airport and weather) and airline.parquet (the delays).

    Each party keeps its own features, unless --layout all gives all of them to the feature party.
    """
    from tpsl.cli.example_data import write_flights
    from tpsl.data.config import FlightsData

    config = config_of(context, FlightsData, layout="natural")
    with progress_bar("writing flights") as progress:
        written = write_flights(out, config.layout, config.task, config.rows, progress)
    _report(out, written, json)


@app.command(cls=settings_command("data", rows="data.rows", classes="data.classes", seed="data.seed"))
def synthetic(context: typer.Context, out: OutOption = Path("synthetic"), json: JsonFlag = False) -> None:
    """Write Criteo-shaped records with a known best possible AUC: feature.parquet and label.parquet.

    Memory does not grow with the number of records.
    """
    from tpsl.cli.example_data import write_synthetic
    from tpsl.data.config import SyntheticData

    config = config_of(context, SyntheticData)
    with progress_bar("writing records") as progress:
        written = write_synthetic(out, config, progress)
    _report(out, written, json)


def config_of(context: typer.Context, kind: type[Config], **start: str) -> Config:
    """Return the configuration of this kind that the options make."""
    source = kind.model_fields["source"].default
    config = Settings.of(context).load_job({"data": {"source": source, **start}}).data
    if not isinstance(config, kind):
        raise ValueError(f"data.source: this command writes {source}, not {config.source}")
    return config


def _report(out: Path, written: Written, json: bool) -> None:
    """Write the job file beside the data, with paths relative to it, and say what is there."""
    description = written.config.model_dump(mode="json", exclude_defaults=True)
    for file in (*description["features"], description["label"]):
        file["path"] = Path(file["path"]).name
    files = [out / file.path.name for file in (*written.config.features, written.config.label)]
    write_job(out, {"source": "table", **description}, files, written.facts, json)


def write_job(out: Path, data: dict[str, Any], files: Sequence[Path], facts: Mapping[str, Any], json: bool) -> None:
    """Write the job that trains on files beside it, and say what is there."""
    job = out / "job.yaml"
    content = {"data": data, "privacy": {"mechanism": "discrete", "epsilon": 1.0}}
    write_atomically(job, as_yaml(content).encode())
    rows: Facts = {"job": job, **{f"data of {file.stem}": file for file in files}}
    rows |= {_spoken(name): f"{value:,}" if isinstance(value, int) else f"{value:.4f}" for name, value in facts.items()}
    steps = {"look at them": f"tpsl data check {job}", "train on them": f"tpsl train {job}"}
    found = {"files": [str(file) for file in files], "job": str(job), **facts}
    answer(json, found, Report("Wrote the data of each party, and their job", rows, steps))


def _spoken(name: str) -> str:
    return name.replace("bayes", "best possible").replace("auc", "AUC").replace("_", " ")
