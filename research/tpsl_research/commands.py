"""The commands `tpsl research …`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from tpsl.cli.console import answer, notice, progress_bar
from tpsl.cli.flags import JsonFlag, RunsArgument, SetOption, Settings, argument, flag, option
from tpsl.files import make_private_folder, write_atomically
from tpsl_research import data_sets
from tpsl_research.data_sets import PUBLIC

if TYPE_CHECKING:
    from tpsl.run.job import Job
    from tpsl.run.local import Local
    from tpsl_research.drawing import Format
    from tpsl_research.frontier_cells import Part

app = typer.Typer(
    help="The laboratory: data sets, the paper's tables and figure, what ε buys, figures for papers.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
)
app.command("data")(data_sets.data)

ProcessesOption = Annotated[
    int | None, option("NUMBER", "Runs at the same time, in one thread each. Default: one for each core.", min=1)
]
SeedsOption = Annotated[int, option("NUMBER", "Number of seeds, from 0; each repeats everything.", min=1)]
ResultsOption = Annotated[Path, option("FOLDER", "Folder for the results; what is in it is continued.")]

_PARTS = ("data", "model", "training", "local")
_HEADS: tuple[Part, ...] = ("private", "local")
_FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")
Name = TypeVar("Name", bound=str)


@app.command()
def paper(
    changes: SetOption = None,
    data: Annotated[
        list[str] | None, option("NAME[=FILE]", "Data set, as criteo=train.txt; may be repeated. Default: flights.")
    ] = None,
    seeds: SeedsOption = 3,
    preset: Annotated[
        Literal["paper", "small", "adam"],
        option("NAME", "paper: batch 8192, SGD, each record once. small: batch 512. adam: small with Adam."),
    ] = "small",
    defences: Annotated[bool, flag("--defences", "Also isotropic noise at the cut, max norm and Marvell.")] = False,
    processes: ProcessesOption = None,
    out: ResultsOption = Path("runs/paper"),
    json: JsonFlag = False,
) -> None:
    """Reproduce the paper's three tables and its trade-off figure, the printed values beside ours.

    Noise is seeded, and one row has none: data that does not come with the package needs
    `--set local.not_private=true`. Example: tpsl research paper --data flights --seeds 1
    """
    from tpsl_research.paper import SKIPPED_BATCHES, leakage_table, paper_settings, results_table, tables_csv
    from tpsl_research.paper_figure import trade_off_figure
    from tpsl_research.sweep import sweep as run_sweep

    bases = {}
    for text in data or ["flights"]:
        chosen = _named(text)
        name = chosen["source"]
        bases[name], _ = _base(Settings.of(changes, parts=_PARTS), _training(preset), chosen)
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


@app.command()
def frontier(
    job: Annotated[
        Path | None, argument("JOB", "Job file (YAML): its data and its network are taken, and nothing else of it.")
    ] = None,
    changes: SetOption = None,
    data: Annotated[str | None, option("NAME[=FILE]", "Data set, as criteo=train.txt, if there is no job.")] = None,
    seeds: SeedsOption = 5,
    epsilon: Annotated[list[float] | None, option("NUMBER", "May be repeated. Default: 0.1, 0.5, 1 and 2.")] = None,
    head: Annotated[
        list[str] | None, option("NAME", "'private' or 'local' heads; may be repeated. Default: both.")
    ] = None,
    method: Annotated[
        list[str] | None,
        option(
            "NAME",
            "What to compare with training without noise: laplace, discrete, gaussian, network, hand-over, trees, "
            "statistic, auto, joined-logistic, joined-trees or ceiling; may be repeated. Default: all.",
        ),
    ] = None,
    processes: ProcessesOption = None,
    out: ResultsOption = Path("runs/frontier"),
    json: JsonFlag = False,
) -> None:
    """Measure what ε buys, on data that come with tpsl or on those of any job; the same command resumes.

    Private heads: the paper's Laplace, Discrete and Gaussian noise; our network on noisy labels, in split training and
    handed over; trees on labels handed over; one central statistic; `auto`, by ε and the number of records the
    statistic, or networks and trees in one ensemble; for comparison, logistic regression and boosted trees on the same
    noisy labels with all parties' features joined, and our network on as many clean labels as the noisy ones are worth.
    Local heads: the paper's noise and ours.

    Networks are tuned by noisy labels alone, for each seed again: Laplace and training without noise over six
    configurations, Discrete and Gaussian over two, ours over what `tpsl tune` tries; every epoch is a candidate, three
    at most, fewer at small ε. Batches are of 1024 records, on small data of fewer, the same for all. With a GPU
    (--set local.device=cuda) networks and statistics are computed there, trees and logistic regression on the cores.

    A cell that fails, or does not apply to the data, is listed with its reason. Writes frontier.md, .csv, .json, .png
    and .svg. Noise is seeded so that results repeat: not private, so data that does not come with the package needs
    `--set local.not_private=true`.
    """
    import torch

    from tpsl_research.frontier import frontier as run_frontier
    from tpsl_research.frontier_cells import METHODS, base_job, cells
    from tpsl_research.frontier_figure import frontier_figure
    from tpsl_research.frontier_report import markdown, summary, write_tables

    settings = Settings.of(changes, parts=_PARTS)
    asked, local = _base(settings, {}, _named(data) if data else None, start=job)
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
    out: Annotated[Path, option("FOLDER", "Folder for the files; made if it is missing.")] = Path("figures"),
    formats: Annotated[
        list[str] | None,
        option("NAME", "Format of the figures; may be repeated. Default: png, svg and pdf.", "--format"),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Draw figures and write tables about runs, for a paper.

    Figures: test AUC against ε and against attack AUC, training curves, the ROC curves of attacks. Tables, as LaTeX and
    Markdown: all runs, all attacks. They depend on true labels, so they are the label party's.
    """
    chosen = _chosen("format", formats, _FORMATS)

    from tpsl.report.run_reading import read_run
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


def _named(text: str) -> dict[str, str]:
    """Return the data that NAME or NAME=FILE means."""
    name, _, path = text.partition("=")
    return {"source": name, **({"path": path} if path else {})}


def _base(
    settings: Settings, training: dict[str, Any], data: dict[str, str] | None = None, start: Path | None = None
) -> tuple[Job, Local]:
    """Return the job that all runs of an experiment start from, of a file or of options alone, and this side's file.

    Every experiment has runs without noise, or with noise from a seed: data that is not public needs a permission.
    """

    chosen = {**settings.job.get("data", {}), **(data or {})}
    changed = replace(settings, job={**settings.job, **({"data": chosen} if chosen else {})})
    job = changed.load_job(start or {"training": training})
    local = settings.load_local(None)
    if job.data.source not in PUBLIC and not local.not_private:
        raise ValueError(
            f"this experiment trains without noise, or with noise from a seed, on {job.data.source}: that is NOT "
            "PRIVATE, and for data that does not come with the package it needs --set local.not_private=true"
        )
    notice("noise is seeded so that results repeat; these runs are not private")
    if trusted := job.data.unverified_assumption:
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
