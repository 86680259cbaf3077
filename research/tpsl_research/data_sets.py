"""`tpsl research data`: a data set as two files, one for each party, and the job that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import Facts, Report, answer, progress_bar
from tpsl.cli.flags import JsonFlag, SetOption, Settings, argument, option
from tpsl.files import as_yaml, write_atomically

if TYPE_CHECKING:
    from tpsl_research.clicklog import ClickData
    from tpsl_research.example_data import Written

PUBLIC = ("flights", "synthetic")
"""Data that comes with the package."""
CLICK_LOGS = ("criteo", "avazu")
NAMES = (*PUBLIC, *CLICK_LOGS)


def data(
    name: Annotated[str, argument("NAME", f"The data set: {', '.join(NAMES)}.")],
    path: Annotated[
        Path | None,
        argument("FILE", "Of criteo and avazu: the file that Kaggle gives for training, plain or compressed."),
    ] = None,
    changes: SetOption = None,
    rows: Annotated[int | None, option("NUMBER", "Number of records.")] = None,
    out: Annotated[Path | None, option("FOLDER", "Folder to write to. Default: the data set's name.")] = None,
    json: JsonFlag = False,
) -> None:
    """Write a data set as two files, one for each party, and the job that trains on them.

    NYC flights 2013: airport.parquet (airport and weather) and airline.parquet (the delays); each party keeps its own
    features, unless `--set data.layout=all` gives all of them to the feature party. Synthetic: Criteo-shaped records
    with a known best possible AUC. Criteo, Avazu: features for the feature party, clicks for the label party. Memory
    does not grow with the number of records. Example: tpsl research data flights --rows 20000
    """
    if name not in NAMES:
        raise typer.BadParameter(f"the data sets are {', '.join(NAMES)}; got {name!r}")
    if (path is not None) != (name in CLICK_LOGS):
        raise typer.BadParameter(f"{' and '.join(CLICK_LOGS)} need the publisher's FILE, the others have none")
    start = {"path": str(path)} if path else {"layout": "natural"} if name == "flights" else {}
    settings = Settings.of(changes, {"data.rows": rows}, parts=("data",))
    config: Any = settings.load_job({"data": {"source": name, **start}}).data
    if config.source != name:
        raise ValueError(f"data.source: this writes {name}, not {config.source}")
    folder = out or Path(name)
    if name in CLICK_LOGS:
        _convert(config, folder, json)
    else:
        _write(config, folder, json)


def _write(config: Any, out: Path, json: bool) -> None:
    from tpsl_research.example_data import write_flights, write_synthetic

    with progress_bar(f"writing {config.source}") as progress:
        if config.source == "flights":
            written = write_flights(out, config.layout, config.task, config.rows, progress)
        else:
            written = write_synthetic(out, config, progress)
    _report(out, written, json)


def _report(out: Path, written: Written, json: bool) -> None:
    """Write the job file beside the data, with paths relative to it, and print what was written."""
    description = written.config.model_dump(mode="json", exclude_defaults=True)
    for file in (*description["features"], description["label"]):
        file["path"] = Path(file["path"]).name
    files = [out / file.path.name for file in (*written.config.features, written.config.label)]
    _write_job(out, {"source": "table", **description}, files, written.facts, json)


def _convert(config: ClickData, out: Path, json: bool) -> None:
    """Stream a click log of any size to one Parquet file for each party, and write the job that trains on them."""
    from tpsl_research.clicklog import convert

    with progress_bar(f"converting {config.path.name}") as progress:
        convert(config, out, progress)
    files = [out / "feature.parquet", out / "label.parquet"]
    _write_job(out, {"source": config.source, "path": "."}, files, {}, json)


def _write_job(out: Path, data: dict[str, Any], files: Sequence[Path], facts: Mapping[str, Any], json: bool) -> None:
    """Write the job that trains on files in its folder, and print what was written."""
    job = out / "job.yaml"
    content = {"data": data, "privacy": {"mechanism": "discrete", "epsilon": 1.0}}
    write_atomically(job, as_yaml(content).encode())
    rows: Facts = {"job": job, **{f"data of {file.stem}": file for file in files}}
    rows |= {_spoken(name): f"{value:,}" if isinstance(value, int) else f"{value:.4f}" for name, value in facts.items()}
    steps = {"look at them": f"tpsl check {job}", "train on them": f"tpsl train {job}"}
    found = {"files": [str(file) for file in files], "job": str(job), **facts}
    answer(json, found, Report("Wrote the data of each party, and their job", rows, steps))


def _spoken(name: str) -> str:
    return name.replace("bayes", "best possible").replace("auc", "AUC").replace("_", " ")
