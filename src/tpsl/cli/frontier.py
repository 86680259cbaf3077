"""`tpsl frontier`: accuracy against ε, the paper's mechanisms and ours, tuned with the same care."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, progress_bar, stdout
from tpsl.cli.data_options import DataName, data_fields, tell_what_is_trusted
from tpsl.cli.device_option import DeviceName, DeviceOption, torch_device
from tpsl.cli.release_options import NotPrivateFlag, require_not_private


class PartName(StrEnum):
    """Which heads the frontier is about."""

    private = "private"
    local = "local"


def frontier(
    path: Annotated[Path | None, typer.Argument(help="The data file, for criteo and avazu.")] = None,
    data: Annotated[DataName, typer.Option(help="Data set.")] = DataName.flights,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0; each repeats everything.")] = 5,
    epsilons: Annotated[str, typer.Option(help="Levels of privacy, separated by commas.")] = "0.1,0.5,1,2",
    parts: Annotated[str, typer.Option(help="'private' heads, 'local' heads, or both.")] = "private,local",
    rows: Annotated[int | None, typer.Option(help="Use only so many records (a quick try).")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Cells at the same time, one core each. Default: one for each core.")
    ] = None,
    device: DeviceOption = DeviceName.cpu,
    not_private: NotPrivateFlag = False,
    out: Annotated[Path, typer.Option(help="Folder for the results; what is in it is continued.")] = Path(
        "runs/frontier"
    ),
    json: JsonFlag = False,
) -> None:
    """Measure what ε buys: the paper's Laplace, Discrete and Gaussian noise, and ours; the same command resumes.

    Every point is tuned over six configurations and three epochs by noisy labels alone, anew for each seed. Writes
    frontier.md, .csv, .json, .png and .svg. Noise is seeded so that results repeat: not private, so data that does not
    come with the package needs --not-private.
    """
    from tpsl.experiments.frontier import TRAINING
    from tpsl.experiments.frontier import frontier as run_frontier
    from tpsl.experiments.frontier_figure import frontier_figure
    from tpsl.experiments.frontier_report import markdown, summary, write_tables
    from tpsl.training import make_job

    fields = {**data_fields(data, path), **({"rows": rows} if rows else {})}
    base = make_job({"data": fields, "training": TRAINING}, {}, "options")
    require_not_private(base.data, not_private)
    levels, heads = _levels(epsilons), _parts(parts)
    notice("noise is seeded so that results repeat; these runs are not private")
    tell_what_is_trusted(base)
    found = []
    with progress_bar(f"the frontier on {data}") as progress:
        for found in run_frontier(
            base,
            out,
            seeds=range(seeds),
            epsilons=levels,
            parts=heads,
            workers=workers or os.cpu_count() or 1,
            device=torch_device(device),
            progress=progress,
        ):
            files = [*write_tables(found, str(data), out).values()]
    figures = [out / "frontier.png", out / "frontier.svg"]
    frontier_figure(found, str(data), figures)
    files += figures
    if json:
        print_json({"files": [str(file) for file in files], **summary(found, str(data))})
        return
    from rich.markdown import Markdown

    stdout.print(Markdown(markdown(found, str(data))))
    for file in files:
        stdout.print(str(file), highlight=False, soft_wrap=True)


def _levels(text: str) -> list[float]:
    try:
        levels = sorted({float(level) for level in text.split(",")})
    except ValueError:
        raise ValueError(f"--epsilons: takes numbers separated by commas, as 0.1,1; got {text!r}") from None
    return levels


def _parts(text: str) -> list[Literal["private", "local"]]:
    names = text.split(",")
    for name in names:
        if name not in list(PartName):
            raise ValueError(f"--parts: takes private, local or both separated by a comma; got {name!r}")
    return [cast(Literal["private", "local"], str(name)) for name in PartName if name in names]
