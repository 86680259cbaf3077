"""`tpsl report`: one page about one run or many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, RunsArgument, answer, progress_bar

if TYPE_CHECKING:
    from tpsl.report.run_view import RunView


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
    The first ε of a run is what its records have spent in all, as its vault says now; of vaults that are gone, what the
    runs have noted that are given, or lie beside them, is added.
    """
    from tpsl.prediction.model import TrainedModel
    from tpsl.report.known_vaults import Memory
    from tpsl.report.page import write_page
    from tpsl.report.run_reading import read_view
    from tpsl.report.run_table import summary, summary_table, vault_sentences
    from tpsl.report.versions import version_rows
    from tpsl.transport.peers import LABEL_PARTY

    runs = [run.path for path in runs for run in TrainedModel.open(path).runs()]
    with progress_bar("reading runs") as progress:
        views, memory = [], Memory.of(runs, vault)
        for done, run in enumerate(runs):
            progress(done, len(runs), run.name)
            views.append(read_view(run, party, memory=memory))
    write_page(out, views, title=title or _heading([view["name"] for view in views]))
    missing = _not_measured(runs, views) if party == LABEL_PARTY else ()
    content = {"page": str(out), "runs": [summary(view) for view in views], "versions": version_rows(views)}
    answer(json, content, [summary_table(views), *vault_sentences(views), *missing, f"The page: {out.resolve()}"])


def _not_measured(runs: Sequence[Path], views: Sequence[RunView]) -> Iterator[str]:
    """Yield, for what the page cannot say of finished runs in one process, the commands that measure it."""
    from tpsl.training.run_folder import RunFolder

    whole = [
        (run, view)
        for run, view in zip(runs, views, strict=True)
        if view["state"] == "finished"
        and not view["learned"]
        and all(RunFolder(run).party(party).is_dir() for party in view["feature_parties"])
    ]
    for run, view in whole:
        if view["attacks"] is None and view["promise"]["epsilon"]:
            sent = [RunFolder(run).party(party) / "transcript" for party in view["feature_parties"]]
            is_recorded = not view["step"] or all(folder.is_dir() for folder in sent)
            how = (
                f":  tpsl attack {run}" if is_recorded else f"; train with --record-transcript, {run} has no transcript"
            )
            yield f"What an attacker gets is not measured{how}"
    compared = {view["data_group"] for _, view in whole if view["promise"]["epsilon"] is None}
    for run, view in whole:
        if view["promise"]["epsilon"] and view["data_group"] not in compared:
            compared.add(view["data_group"])
            command = f"tpsl train {run / 'job.yaml'} --set privacy.mechanism=none --scratch --out {run}-without-noise"
            yield f"What the noise costs is not measured:  {command}"


def _heading(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} runs"
