"""`tpsl label evaluate`: test metrics of a run that the feature parties may see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, RunArgument, answer, notice, progress_bar
from tpsl.cli.settings import LOCAL, RELEASE_FLAGS, LocalOption, Settings, settings_command

if TYPE_CHECKING:
    from tpsl.training.shared_evaluation import SharedEvaluation

COMMAND = settings_command(LOCAL, **RELEASE_FLAGS)


def evaluate(
    context: typer.Context,
    run: RunArgument,
    epsilon: Annotated[float, typer.Option(help="The ε that each test label may cost.")],
    mechanism: Annotated[str, typer.Option(help="How test labels are made noisy.", metavar="NAME")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="The file to hand over. Default: shared_metrics.json in the run folder.")
    ] = None,
    local: LocalOption = None,
    json: JsonFlag = False,
) -> None:
    """Evaluate a finished run with noisy labels of its test records, so that the feature parties may know the result.

    The noisy labels come out of the run's vault: they are drawn once, their ε is in its ledger, and asking again with
    the same ε, for this run or for another on the same records, costs nothing. Nothing is sent: the file is yours to
    hand over. Example:

    tpsl label evaluate runs/job-label --epsilon 0.5
    """
    from tpsl.data.dataset import load_label_party
    from tpsl.files import write_atomically
    from tpsl.mechanisms import build_mechanism
    from tpsl.training.local import own_data
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.shared_evaluation import SHARED_METRICS, evaluate_for_sharing
    from tpsl.transport.peers import LABEL_PARTY

    folder, here = RunFolder(run), Settings.of(context).load_local(local)
    job = folder.job()
    data = own_data(job, LABEL_PARTY, here.data).data
    source = folder.own_parts(LABEL_PARTY).source(LABEL_PARTY)
    with progress_bar("reading labels") as progress:
        side = load_label_party(data, progress, late_labels=job.has_late_labels, source=source)
    chosen, _ = build_mechanism(mechanism, side.records.classes, epsilon=epsilon)
    policy, vault = here.vault_choice().policy, here.vault or folder.vault()
    found = evaluate_for_sharing(folder, side, chosen, vault, policy, notice)
    file = out or run / SHARED_METRICS
    write_atomically(file, found.to_json())
    answer(json, {"file": str(file), **found.as_dict()}, [*_lines(found), f"to hand over: {file}"])


def _lines(found: SharedEvaluation) -> Iterator[str]:
    from tpsl.report.words import estimate_texts, spent_text

    yield f"{found.test_records:,} test records, {found.mechanism}"
    yield from (f"{name:<26} {text}" for name, text in estimate_texts(found.metrics).items())
    yield f"{'test records':<26} have spent {spent_text(found.total_epsilon, found.total_delta)} in all"
