"""`tpsl report`: one page about one run or many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpsl.cli.console import JsonFlag, print_json, progress_bar, say, stdout


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    party: Annotated[
        str | None,
        typer.Option(help="Make the page of this feature party: nothing in it depends on true labels."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page. Default: the names of the runs.")] = None,
    json: JsonFlag = False,
) -> None:
    """Write a page about runs: what was promised, what it costs, what an attacker got.

    One HTML file that loads nothing. It is for the label party, because test AUCs depend on true labels; with --party
    it is for that feature party. Runs that go on are shown as unfinished.
    """
    from tpsl.report.feature_reading import read_feature_run
    from tpsl.report.page import write_page
    from tpsl.report.reading import read_run
    from tpsl.report.table import summary, summary_table
    from tpsl.transport.peers import LABEL_PARTY

    with progress_bar("reading runs") as progress:
        views = []
        for done, run in enumerate(runs):
            progress(done, len(runs), run.name)
            views.append(read_run(run) if party in (None, LABEL_PARTY) else read_feature_run(run, party))
    write_page(out, views, title=title or _heading([view["name"] for view in views]))
    if json:
        print_json({"page": str(out), "runs": [summary(view) for view in views]})
    else:
        stdout.print(summary_table(views))
        say(f"The page: {out.resolve()}")


def _heading(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} runs"
