"""`tpsl sweep` and `tpsl paper`: grids of runs, and the paper's tables and figure."""

from __future__ import annotations

import csv
import io
import json as json_text
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, progress_bar, stdout
from tpsl.cli.data_options import NEEDS_PATH, DataName, data_fields, tell_what_is_trusted
from tpsl.cli.release_options import NotPrivateFlag, require_not_private
from tpsl.files import write_atomically

if TYPE_CHECKING:
    from tpsl.training import Job


class Preset(StrEnum):
    """How to train in an experiment."""

    paper = "paper"
    small = "small"
    adam = "adam"


WorkersOption = Annotated[int | None, typer.Option(min=1, help="Runs at the same time. Default: one for each core.")]
SeedsOption = Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")]
RowsOption = Annotated[int | None, typer.Option(help="Use only so many records (a quick try).")]
PresetOption = Annotated[
    Preset,
    typer.Option(help="'paper': batch 8192, SGD, each record once. 'small': batch 512. 'adam': 'small' with Adam."),
]
EpochsOption = Annotated[int | None, typer.Option(min=1, help="Epochs, instead of the preset's.")]


def sweep(
    path: Annotated[Path | None, typer.Argument(help="The data file, for criteo and avazu.")] = None,
    data: Annotated[DataName, typer.Option(help="Data set.")] = DataName.flights,
    mechanism: Annotated[
        list[str] | None, typer.Option(help="none, laplace, discrete or gaussian; can be given more than once.")
    ] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Can be given more than once.")] = None,
    estimator: Annotated[
        list[str] | None, typer.Option(help="linear, unbiased or posterior; can be given more than once.")
    ] = None,
    seeds: SeedsOption = 3,
    preset: PresetOption = Preset.small,
    epochs: EpochsOption = None,
    rows: RowsOption = None,
    workers: WorkersOption = None,
    not_private: NotPrivateFlag = False,
    out: Annotated[Path, typer.Option(help="Folder for the results; a sweep in it is continued.")] = Path("runs/sweep"),
    json: JsonFlag = False,
) -> None:
    """Train and attack every combination of mechanism, ε, estimator and seed; the same command resumes.

    Writes results.csv and results.parquet, one row for each run. Noise is seeded so that results repeat: not private,
    so data that does not come with the package needs --not-private. Each run has a vault of its own.
    """
    from tpsl.experiments.sweep import grid
    from tpsl.experiments.sweep import sweep as run_sweep

    settings = grid(
        mechanism or ["none", "laplace", "discrete"],
        epsilon or [0.1, 1.0, 10.0],
        estimator or ["linear", "posterior"],
        range(seeds),
    )
    base = _base(data, path, preset, rows, epochs)
    require_not_private(base.data, not_private)
    notice("noise is seeded so that results repeat; these runs are not private")
    with progress_bar("sweep") as progress:
        results = run_sweep(settings, base, out, workers=workers, progress=progress)
    if json:
        print_json({"out": str(out), "runs": len(results), "results": results})
        return
    from rich.table import Table

    table = Table("algorithm", "ε", "seed", "test AUC", "norm", "spectral", "shortest distance")
    for row in results:
        table.add_row(
            row["algorithm"],
            "∞" if row["epsilon"] is None else f"{row['epsilon']:.4g}",
            str(row["seed"]),
            *(
                "diverged" if row["diverged"] else f"{row[column]:.4f}"
                for column in ("test_auc", "norm_auc", "spectral_auc", "shortest_distance_auc")
            ),
        )
    stdout.print(table)
    stdout.print(f"{out / 'results.csv'}", highlight=False, soft_wrap=True)


def paper(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="The data files of criteo and avazu, in the order of their --data.")
    ] = None,
    data: Annotated[
        list[DataName] | None, typer.Option(help="Data set; can be given more than once. Default: flights.")
    ] = None,
    seeds: SeedsOption = 3,
    preset: PresetOption = Preset.small,
    epochs: EpochsOption = None,
    rows: RowsOption = None,
    defences: Annotated[
        bool, typer.Option("--defences", help="Also isotropic noise at the cut, max norm and Marvell.")
    ] = False,
    workers: WorkersOption = None,
    not_private: NotPrivateFlag = False,
    out: Annotated[Path, typer.Option(help="Folder for the results; what is in it is continued.")] = Path("runs/paper"),
    json: JsonFlag = False,
) -> None:
    """Reproduce the paper's three tables and its trade-off figure, the printed values beside ours.

    Noise is seeded, and one row has none: data that does not come with the package needs --not-private.
    Example: tpsl paper --data criteo train.txt --not-private
    """
    from tpsl.experiments.figures import trade_off_figure
    from tpsl.experiments.paper import SKIPPED_BATCHES, leakage_table, paper_settings, results_table
    from tpsl.experiments.sweep import sweep as run_sweep

    remaining = list(paths or [])
    bases = {}
    for name in data or [DataName.flights]:
        path = remaining.pop(0) if name in NEEDS_PATH and remaining else None
        bases[str(name)] = _base(name, path, preset, rows, epochs)
    if remaining:
        raise ValueError(f"there is a path too many: {remaining[0]}")
    for base in bases.values():
        require_not_private(base.data, not_private)
    results, tables = {}, []
    notice("noise is seeded so that results repeat; these runs are not private")
    for source, base in bases.items():
        with progress_bar(f"the paper on {source}") as progress:
            results[source] = run_sweep(
                paper_settings(range(seeds), defences=defences),
                base,
                out / source,
                workers=workers,
                skip_batches=SKIPPED_BATCHES,
                progress=progress,
            )
        tables += [leakage_table(source, results[source]), results_table(source, results[source])]
    text = "\n".join(table.markdown() for table in tables)
    write_atomically(out / "tables.md", text.encode())
    lines = io.StringIO(newline="")
    for table in tables:
        csv.writer(lines).writerows([(table.title,), *table.rows, ()])
    write_atomically(out / "tables.csv", lines.getvalue().encode())
    figures = [out / "tradeoff.png", out / "tradeoff.svg"]
    trade_off_figure(results, figures)
    files = [str(path) for path in (out / "tables.md", out / "tables.csv", *figures)]
    if json:
        content: list[dict[str, Any]] = [{"title": table.title, "rows": table.rows} for table in tables]
        print_json(json_text.loads(json_text.dumps({"files": files, "tables": content})))
        return
    from rich.markdown import Markdown

    stdout.print(Markdown(text))
    for file_name in files:
        stdout.print(file_name, highlight=False, soft_wrap=True)


def _base(data: DataName, path: Path | None, preset: Preset, rows: int | None, epochs: int | None) -> Job:
    from tpsl.experiments.paper import PRESETS
    from tpsl.training import make_job

    training = {**PRESETS[preset], "checkpoint_every": 1 << 30, **({"epochs": epochs} if epochs else {})}
    fields = {**data_fields(data, path), **({"rows": rows} if rows else {})}
    job = make_job({"data": fields, "training": training}, {}, "options")
    tell_what_is_trusted(job)
    return job
