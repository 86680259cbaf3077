"""`tpsl label evaluate`: test metrics of a run that the feature parties may see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, Report, RunArgument, answer, notice, progress_bar
from tpsl.cli.settings import LOCAL, RELEASE_FLAGS, LocalOption, Settings, settings_command

if TYPE_CHECKING:
    from tpsl.training.shared_evaluation import SharedEvaluation
    from tpsl.vault import LedgerTotal

COMMAND = settings_command(LOCAL, **RELEASE_FLAGS)


def evaluate(
    context: typer.Context,
    run: RunArgument,
    epsilon: Annotated[float, typer.Option(help="The ε that each label may cost.")],
    mechanism: Annotated[str, typer.Option(help="How labels are made noisy.", metavar="NAME")] = "auto",
    scores: Annotated[
        Path | None,
        typer.Option(help="Scores of new records (tpsl predict) whose labels are in the vault, not the test records."),
    ] = None,
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
    from tpsl.prediction.scores import read_scores
    from tpsl.training.local import own_data
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.shared_evaluation import (
        SHARED_METRICS,
        EvaluationTerms,
        evaluate_new_records,
        evaluate_test_records,
    )
    from tpsl.transport.peers import LABEL_PARTY

    folder, here = RunFolder(run), Settings.of(context).load_local(local)
    job = folder.job()
    data = own_data(job, LABEL_PARTY, here.data, here.alignment).data
    source = folder.own_parts(LABEL_PARTY).source(LABEL_PARTY)
    with progress_bar("reading labels") as progress:
        side = load_label_party(data, progress, late_labels=job.has_late_labels, source=source)
    chosen, _ = build_mechanism(mechanism, side.records.classes, epsilon=epsilon)
    terms = EvaluationTerms(chosen, here.vault or folder.vault(), here.release_policy(), notice)
    if scores is None:
        found, total = evaluate_test_records(folder, side, terms)
    else:
        found, total = evaluate_new_records(folder, side, *read_scores(scores, side.records.class_names), terms)
    file = out or run / SHARED_METRICS
    write_atomically(file, found.to_json())
    spent = {"total_epsilon": total.epsilon, "total_delta": total.delta, "private": total.private}
    answer(json, {"file": str(file), **spent, **found.as_dict()}, _report(found, total, file))


def _report(found: SharedEvaluation, total: LedgerTotal, file: Path) -> Report:
    from tpsl.report.words import estimate_texts, spent_text

    spent = spent_text(total.epsilon, total.delta) + ("" if total.private else ", NOT PRIVATE")
    return Report(
        f"Evaluated on noisy labels of {found.records:,} {found.of}, {found.mechanism}",
        {
            **estimate_texts(found.metrics),
            "guarantee": f"{'the people in them' if total.of_people else found.of} have spent {spent} in all",
            "to hand over": file,
        },
    )
