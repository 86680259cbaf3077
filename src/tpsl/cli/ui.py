"""`tpsl ui`: the report of a folder of runs, live in a browser."""

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
        str | None,
        typer.Option(help="Show what this feature party may know: nothing on the page depends on true labels."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show the runs of a folder in a browser, live: runs in progress move by themselves.

    It only reads, and only this machine can reach it. The address contains a secret: anyone who has it can read the
    page. Ctrl-C ends it.
    """
    from tpsl.report.live_page import LivePage
    from tpsl.report.watching import WatchedFolder
    from tpsl.transport.peers import LABEL_PARTY

    if folder is None:
        folder = Path("runs") if Path("runs").is_dir() else Path()
    watched = WatchedFolder(folder, party or LABEL_PARTY)
    live = LivePage(watched, port)
    with progress_bar("reading runs") as progress:
        snapshot = watched.snapshot(progress)
    if json:
        print_json({"url": live.url, "folder": str(folder), "runs": len(snapshot.views)})
    else:
        say(live.url)
        notice(f"{len(snapshot.views)} runs in {folder}; Ctrl-C ends the page, no run is touched")
    for problem in snapshot.problems:
        notice(f"not shown: {problem}")
    with suppress(KeyboardInterrupt), stoppable("the page has ended"):
        live.serve()
