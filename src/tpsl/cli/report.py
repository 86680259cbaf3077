"""`tpsl report`: one page about one run or many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpsl.cli.console import JsonFlag, RunsArgument, answer, progress_bar


def report(
    runs: RunsArgument,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    party: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PARTY",
            help="Whose page it is: label, feature, or a feature party by its name. In a feature party's page nothing "
            "depends on true labels; the label party makes it too, to hand its promise over.",
        ),
    ] = "label",
    vault: Annotated[
        Path | None, typer.Option(help="Where the runs' vault is now. Default: where each run has noted it.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page. Default: the names of the runs.")] = None,
    json: JsonFlag = False,
) -> None:
    """Write a page about runs: what was promised, what it costs, what an attacker got.

    One HTML file that loads nothing. It is for the label party, because test AUCs depend on true labels; with --for
    it is for a feature party. The folder of a search stands for its runs. Runs that go on are shown as unfinished.
    The first ε of a run is what its records have spent in all, as its vault says now; where other known vaults hold the
    same records, the sum stands beside it.
    """
    from tpsl.prediction.model import TrainedModel
    from tpsl.report.ledgers import known_vaults, with_sums
    from tpsl.report.page import write_page
    from tpsl.report.reading import read_view
    from tpsl.report.run_table import sum_sentences, summary, summary_table
    from tpsl.report.versions import version_rows
    from tpsl.training.run_folder import RunFolder
    from tpsl.transport.peers import LABEL_PARTY
    from tpsl.vault import sums_over

    runs = [run.path for path in runs for run in TrainedModel.open(path).runs()]
    with progress_bar("reading runs") as progress:
        views = []
        for done, run in enumerate(runs):
            progress(done, len(runs), run.name)
            views.append(read_view(run, party, vault=vault))
        if party == LABEL_PARTY:
            vaults = [vault or RunFolder(run).vault() for run in runs]
            views = with_sums(views, vaults, sums_over(known_vaults(vaults)))
    write_page(out, views, title=title or _heading([view["name"] for view in views]))
    content = {"page": str(out), "runs": [summary(view) for view in views], "versions": version_rows(views)}
    answer(json, content, [summary_table(views), *sum_sentences(views), f"The page: {out.resolve()}"])


def _heading(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} runs"
