"""`tpsl ui`: the runs of a folder in a browser: a list to search and compare, live."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, progress_bar, say
from tpsl.cli.termination import stoppable


def ui(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder with runs, which may lie in folders of it. Default: runs, or this folder if there is none.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0 takes a free one.")] = 0,
    party: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PARTY",
            help="Who reads it: label, feature, or a feature party by its name. A feature party is shown nothing that "
            "depends on true labels.",
        ),
    ] = "label",
    json: JsonFlag = False,
) -> None:
    """Show the runs of a folder in a browser: a list to sort, search and compare. What is running moves by itself.

    It only reads, and only this machine can reach it. The address contains a secret: anyone who has it can read the
    page. Ctrl-C ends it.
    """
    from tpsl.report.live_page import LivePage
    from tpsl.report.watching import WatchedFolder

    if folder is None:
        folder = Path("runs") if Path("runs").is_dir() else Path()
    watched = WatchedFolder(folder, party)
    live = LivePage(watched, port)
    with progress_bar("reading runs") as progress:
        snapshot = watched.snapshot(progress)
    if json:
        print_json({"url": live.url, "folder": str(folder), "runs": len(snapshot.runs)})
    else:
        say(live.url)
        notice(f"Open this address in a browser: it shows {_runs_in(len(snapshot.runs), folder)}. Ctrl-C ends it.")
    for problem in snapshot.problems:
        notice(f"not shown: {problem}")
    with suppress(KeyboardInterrupt), stoppable("the page has ended"):
        live.serve()


def _runs_in(count: int, folder: Path) -> str:
    where = "this folder" if folder == Path() else str(folder)
    if count == 0:
        return f"the first run in {where} as soon as there is one"
    return f"{count:,} run{'' if count == 1 else 's'} in {where}"
