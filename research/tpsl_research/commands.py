"""The commands `tpsl research …`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from tpsl.cli.console import JsonFlag, RunsArgument, answer, notice, progress_bar
from tpsl.cli.data import config_of, write_job
from tpsl.cli.settings import Settings, settings_command
from tpsl.files import make_private_folder, write_atomically

if TYPE_CHECKING:
    from tpsl.training.job import Job
    from tpsl.training.local import Local
    from tpsl_research.clicklog import ClickData
    from tpsl_research.drawing import Format
    from tpsl_research.frontier_cells import Part

app = typer.Typer(
    help="The laboratory: the paper's tables and figure, grids of runs, what ε buys, figures for papers.",
    no_args_is_help=True,
)

ProcessesOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Runs at the same time, in one thread each. Default: one for each core."),
]
SeedsOption = Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds, from 0; each repeats everything.")]
OutOption = Annotated[Path, typer.Option(help="Folder for the results; what is in it is continued.")]

_PARTS = ("data", "model", "training", "local")
_FLAGS = {"rows": "data.rows", "epochs": "training.epochs", "not_private": "local.not_private"}
_DATA_FLAGS = {"data": "data.source", "path": "data.path"}
_PUBLIC = ("flights", "synthetic")
"""Data that comes with the package."""
_HEADS: tuple[Part, ...] = ("private", "local")
_FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")
Name = TypeVar("Name", bound=str)


LogArgument = Annotated[Path, typer.Argument(help="The file that Kaggle gives for training, plain or compressed.")]
TablesOption = Annotated[Path, typer.Option(help="Folder to write to.")]


@app.command(cls=settings_command("data", rows="data.rows"))
def criteo(
    context: typer.Context, path: LogArgument, out: TablesOption = Path("criteo"), json: JsonFlag = False
) -> None:
    """Convert Criteo's display advertising file: features for the feature party, clicks for the label party."""
    from tpsl_research.clicklog import CriteoData

    _convert(config_of(context, CriteoData, path=str(path)), out, json)


@app.command(cls=settings_command("data", rows="data.rows"))
def avazu(context: typer.Context, path: LogArgument, out: TablesOption = Path("avazu"), json: JsonFlag = False) -> None:
    """Convert Avazu's click file: features for the feature party, clicks for the label party."""
    from tpsl_research.clicklog import AvazuData

    _convert(config_of(context, AvazuData, path=str(path)), out, json)


def _convert(config: ClickData, out: Path, json: bool) -> None:
    """Stream a click log of any size to one Parquet file for each party, and write the job that trains on them."""
    from tpsl_research.clicklog import convert

    with progress_bar(f"converting {config.path.name}") as progress:
        convert(config, out, progress)
    files = [out / "feature.parquet", out / "label.parquet"]
    write_job(out, {"source": config.source, "path": "."}, files, {}, json)


@app.command(cls=settings_command(*_PARTS, **_FLAGS))
def paper(
    context: typer.Context,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=PATH]", help="Data set, as criteo=train.txt; may be repeated. Default: flights."),
    ] = None,
    seeds: SeedsOption = 3,
    preset: Annotated[
        Literal["paper", "small", "adam"],
        typer.Option(help="paper: batch 8192, SGD, each record once. small: batch 512. adam: small with Adam."),
    ] = "small",
    defences: Annotated[
        bool, typer.Option("--defences", help="Also isotropic noise at the cut, max norm and Marvell.")
    ] = False,
    processes: ProcessesOption = None,
    out: OutOption = Path("runs/paper"),
    json: JsonFlag = False,
) -> None:
    """Reproduce the paper's three tables and its trade-off figure, the printed values beside ours.

    Noise is seeded, and one row has none: data that does not come with the package needs --not-private.
    Example: tpsl research paper --data criteo=train.txt --not-private
    """
    from tpsl_research.paper import SKIPPED_BATCHES, leakage_table, paper_settings, results_table, tables_csv
    from tpsl_research.paper_figure import trade_off_figure
    from tpsl_research.sweep import sweep as run_sweep

    bases = {}
    for name, _, path in (text.partition("=") for text in data or ["flights"]):
        chosen = {"source": name, **({"path": path} if path else {})}
        bases[name], _ = _base(Settings.of(context), _training(preset), chosen)
    settings = paper_settings(range(seeds), defences=defences)
    results, tables = {}, []
    for source, base in bases.items():
        with progress_bar(f"the paper on {source}") as progress:
            results[source] = run_sweep(
                settings, base, out / source, workers=processes, skip_batches=SKIPPED_BATCHES, progress=progress
            )
        tables += [leakage_table(source, results[source]), results_table(source, results[source])]
    text = "\n".join(table.markdown("###") for table in tables)
    files = [out / name for name in ("tables.md", "tables.csv", "tradeoff.png", "tradeoff.svg")]
    write_atomically(files[0], text.encode())
    write_atomically(files[1], tables_csv(tables).encode())
    trade_off_figure(results, files[2:])
    content = [{"title": table.title, "rows": table.rows} for table in tables]
    _answer(json, {"tables": content}, text, files)


@app.command(cls=settings_command(*_PARTS, **_DATA_FLAGS, **_FLAGS))
def sweep(
    context: typer.Context,
    mechanism: Annotated[
        list[str] | None, typer.Option(help="Mechanism; may be repeated. Default: none, laplace and discrete.")
    ] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="May be repeated. Default: 0.1, 1 and 10.")] = None,
    estimator: Annotated[
        list[str] | None, typer.Option(help="Estimator; may be repeated. Default: linear and posterior.")
    ] = None,
    seeds: SeedsOption = 3,
    processes: ProcessesOption = None,
    out: OutOption = Path("runs/sweep"),
    json: JsonFlag = False,
) -> None:
    """Train and attack every combination of mechanism, ε, estimator and seed; the same command resumes.

    Writes results.csv and results.parquet, one row for each run. Noise is seeded so that results repeat: not private,
    so data that does not come with the package needs --not-private. Each run has a vault of its own.
    """
    from tpsl_research.sweep import grid, results_table
    from tpsl_research.sweep import sweep as run_sweep

    settings = grid(
        mechanism or ["none", "laplace", "discrete"],
        epsilon or [0.1, 1.0, 10.0],
        estimator or ["linear", "posterior"],
        range(seeds),
    )
    base, _ = _base(Settings.of(context), _training("small"))
    with progress_bar("sweep") as progress:
        results = run_sweep(settings, base, out, workers=processes, progress=progress)
    content = {"out": str(out), "runs": len(results), "results": results}
    _answer(json, content, results_table(results).markdown(), [out / "results.csv", out / "results.parquet"])


@app.command(cls=settings_command(*_PARTS, **_DATA_FLAGS, **_FLAGS, device="local.device", threads="local.threads"))
def frontier(
    context: typer.Context,
    job: Annotated[
        Path | None,
        typer.Argument(help="Job file (YAML): its data and its network are taken, and nothing else of it."),
    ] = None,
    seeds: SeedsOption = 5,
    epsilon: Annotated[list[float] | None, typer.Option(help="May be repeated. Default: 0.1, 0.5, 1 and 2.")] = None,
    head: Annotated[
        list[str] | None, typer.Option(help="'private' or 'local' heads; may be repeated. Default: both.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="What to compare with training without noise: laplace, discrete, gaussian, network, hand-over, trees, "
            "statistic, auto, joined-logistic, joined-trees or ceiling; may be repeated. Default: all.",
        ),
    ] = None,
    processes: ProcessesOption = None,
    out: OutOption = Path("runs/frontier"),
    json: JsonFlag = False,
) -> None:
    """Measure what ε buys, on data that come with tpsl or on those of any job; the same command resumes.

    Private heads: the paper's Laplace, Discrete and Gaussian noise; our network on noisy labels, in split training and
    handed over; trees on labels handed over; one central statistic; `auto`, by ε and the number of records the
    statistic, or networks and trees in one committee; for comparison, logistic regression and boosted trees on the same
    noisy labels with all parties' features joined, and our network on as many clean labels as the noisy ones are worth.
    Local heads: the paper's noise and ours.

    Networks are tuned by noisy labels alone, for each seed again: Laplace and training without noise over six
    configurations, Discrete and Gaussian over two, ours over what `tpsl tune` tries; every epoch is a candidate, three
    at most, fewer at small ε. Batches are of 1024 records, on small data of fewer, the same for all. With a GPU
    (--device cuda) networks and statistics are computed there, trees and logistic regression on the cores.

    A cell that fails, or does not apply to the data, is listed with its reason. Writes frontier.md, .csv, .json, .png
    and .svg. Noise is seeded so that results repeat: not private, so data that does not come with the package needs
    --not-private.
    """
    import torch

    from tpsl_research.frontier import frontier as run_frontier
    from tpsl_research.frontier_cells import METHODS, base_job, cells
    from tpsl_research.frontier_figure import frontier_figure
    from tpsl_research.frontier_report import markdown, summary, write_tables

    settings = Settings.of(context)
    asked, local = _base(settings, {}, start=job)
    name = job.stem if job is not None else asked.data.source
    epsilons, heads = sorted(set(epsilon or (0.1, 0.5, 1.0, 2.0))), _chosen("head", head, _HEADS)
    wanted = cells(range(seeds), epsilons, heads, [METHODS[name] for name in _chosen("method", method, tuple(METHODS))])
    base = base_job(asked, settings.job.get("training", {}))
    workers, device = processes or os.cpu_count() or 1, None if local.device == "cpu" else torch.device(local.device)
    with progress_bar(f"the frontier on {name}") as progress:
        for found in run_frontier(base, out, wanted, workers=workers, device=device, progress=progress):
            files = [*write_tables(found, name, out).values()]
    figures = [out / "frontier.png", out / "frontier.svg"]
    frontier_figure(found, name, figures)
    _answer(json, summary(found, name), markdown(found, name), [*files, *figures])


@app.command()
def figures(
    runs: RunsArgument,
    out: Annotated[Path, typer.Option(help="Folder for the files; made if it is not there.")] = Path("figures"),
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Format of the figures; may be repeated. Default: png, svg and pdf."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Draw figures and write tables about runs, for a paper.

    Figures: test AUC against ε and against attack AUC, training curves, the ROC curves of attacks. Tables, as LaTeX and
    Markdown: all runs, all attacks. They depend on true labels, so they are the label party's.
    """
    chosen = _chosen("format", formats, _FORMATS)

    from tpsl.report.label_view import read_run
    from tpsl_research.run_figures import write_figures
    from tpsl_research.run_tables import write_tables

    with progress_bar("reading runs") as progress:
        views = []
        for done, run in enumerate(runs):
            progress(done, len(runs), run.name)
            views.append(read_run(run))
        if out.exists() and not out.is_dir():
            raise NotADirectoryError(f"cannot write figures to {out}: it is no folder")
        make_private_folder(out)
        progress(len(runs), len(runs), "drawing")
        drawn, left_out = write_figures(views, out, chosen)
    _answer(json, {"left_out": left_out}, "", [*drawn, *write_tables(views, out)])
    for name, reason in left_out.items():
        notice(f"{name}: not drawn, it {reason}")


def _base(
    settings: Settings,
    training: dict[str, Any],
    data: Mapping[str, Any] | None = None,
    start: Path | None = None,
) -> tuple[Job, Local]:
    """Return the job that all runs of an experiment start from, of a file or of options alone, and this side's file.

    Every experiment has runs without noise, or with noise from a seed: data that is not public needs a permission.
    """
    from tpsl.data.dataset import taken_on_trust

    chosen = {**settings.job.get("data", {}), **(data or {})}
    changed = replace(settings, job={**settings.job, **({"data": chosen} if chosen else {})})
    job = changed.load_job(start or {"training": training})
    local = settings.load_local(None)
    if job.data.source not in _PUBLIC and not local.not_private:
        raise ValueError(
            f"this experiment trains without noise, or with noise from a seed, on {job.data.source}: that is NOT "
            "PRIVATE, and for data that does not come with the package it needs --not-private"
        )
    notice("noise is seeded so that results repeat; these runs are not private")
    if trusted := taken_on_trust(job.data):
        notice(trusted)
    return job, local


def _training(preset: str) -> dict[str, Any]:
    from tpsl_research.paper import PRESETS

    return {**PRESETS[preset], "checkpoint_every": 1 << 30}


def _answer(json: bool, content: dict[str, Any], tables: str, files: list[Path]) -> None:
    """Print what was found, as tables in Markdown, and the files that were written."""
    from rich.markdown import Markdown

    names = [str(file) for file in files]
    answer(json, {"files": names, **content}, [*([Markdown(tables)] if tables else []), *names])


def _chosen(option: str, given: list[str] | None, known: tuple[Name, ...]) -> list[Name]:
    """Return the known names that an option was given, in their own order; all of them if it was not given."""
    wanted = known if given is None else [name.strip().lower() for name in given]
    for name in wanted:
        if name not in known:
            raise ValueError(f"--{option}: {name!r} is none of {', '.join(known)}")
    return [name for name in known if name in wanted]
