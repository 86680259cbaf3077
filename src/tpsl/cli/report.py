"""`tpsl report`: one page about one run or many; `tpsl ui`: the runs of a folder in a browser, live."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from tpsl.cli.console import answer, notice, print_json, progress_bar, say, stoppable
from tpsl.cli.flags import ForOption, JsonFlag, RunsArgument, argument, option
from tpsl.report.known_vaults import Memory
from tpsl.report.page import write_page
from tpsl.report.run_table import summary, summary_table, vault_sentences
from tpsl.report.version_view import version_rows


def report(
    runs: RunsArgument,
    out: Annotated[Path, option("FILE", "The page.")] = Path("report.html"),
    party: ForOption = "label",
    vault: Annotated[
        Path | None, option("FOLDER", "Where the runs' vault is now. Default: where each run has noted it.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write a page about runs: what was promised, what it costs, what an attacker got.

    One HTML file that loads nothing. It is for the label party, because test AUCs depend on true labels; with --for
    it is for a feature party. The folder of a search stands for its runs. Runs that go on are shown as unfinished.
    The first ε of a run is what its records have spent in all, as its vault says now; of vaults that are gone, what the
    runs have noted that are given, or lie beside them, is added.
    """
    from tpsl.prediction.model import TrainedModel
    from tpsl.report.run_reading import read_view

    runs = [run.path for path in runs for run in TrainedModel.open(path).runs()]
    with progress_bar("reading runs") as progress:
        views, memory = [], Memory.of(runs, vault)
        for done, run in enumerate(runs):
            progress(done, len(runs), run.name)
            views.append(read_view(run, party, memory=memory))
    names = [view["name"] for view in views]
    write_page(out, views, title=", ".join(names) if len(names) <= 3 else f"{len(names)} runs")
    content = {"page": str(out), "runs": [summary(view) for view in views], "versions": version_rows(views)}
    answer(json, content, [summary_table(views), *vault_sentences(views), f"The page: {out.resolve()}"])


def ui(
    folder: Annotated[
        Path | None,
        argument(
            "FOLDER",
            "Folder with runs, which may lie in folders of it. Default: runs, or this folder if there is none.",
        ),
    ] = None,
    port: Annotated[int, option("PORT", "Port of 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
    party: ForOption = "label",
    json: JsonFlag = False,
) -> None:
    """Show the runs of a folder in a browser: a list to sort, search and compare. Running jobs update live.

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
    count = len(snapshot.runs)
    if json:
        print_json({"url": live.url, "folder": str(folder), "runs": count})
    else:
        where = "this folder" if folder == Path() else str(folder)
        runs = f"{count:,} run{'' if count == 1 else 's'}" if count else "the first run as soon as there is one,"
        say(live.url)
        notice(f"Open this address in a browser: it shows {runs} in {where}. Ctrl-C ends it.")
    for problem in snapshot.problems:
        notice(f"not shown: {problem}")
    with suppress(KeyboardInterrupt), stoppable("the page has ended"):
        live.serve()
