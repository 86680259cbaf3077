"""`tpsl label evaluate`: test metrics of a run, from true labels for the label party or from noisy ones for others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import Report, answer, notice, progress_bar
from tpsl.cli.flags import JsonFlag, LocalOption, RunArgument, SetOption
from tpsl.cli.run_result import show_result
from tpsl.cli.settings import LOCAL, Settings
from tpsl.cli.tune import show_tuned

if TYPE_CHECKING:
    from tpsl.training.local import Local
    from tpsl.training.observer import Watching
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.shared_evaluation import SharedEvaluation
    from tpsl.vault import Spent


def evaluate(
    run: RunArgument,
    changes: SetOption = None,
    local: LocalOption = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Make metrics that feature parties may see, from noisy labels: the ε that each may cost.",
            show_default=False,
        ),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --epsilon: scores of new records (tpsl predict) whose labels are in the vault, not the test "
            "records.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --epsilon: the file to hand over. Default: shared_metrics.json in the run folder.",
            show_default=False,
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Evaluate a finished run, or search, on its test records, and train its local head if the job has one.

    Both use true labels: what is printed and written is for the label party's eyes. `tpsl label serve` does neither,
    because a feature party sees when it ends. Example:

    tpsl label evaluate runs/job-label

    With --epsilon the metrics come from noisy labels of the test records, so that the feature parties may know them.
    These labels come out of the run's vault: they are drawn once, their ε is in its ledger, and asking again with the
    same ε, for this run or for another on the same records, costs nothing. Nothing is sent: the file is yours to hand
    over. Example:

    tpsl label evaluate runs/job-label --epsilon 0.5
    """
    settings = Settings.of(changes, parts=("privacy", LOCAL))
    here = settings.load_local(local)
    if epsilon is None:
        if scores or out or settings.job:
            raise typer.BadParameter("--scores, --out and keys of privacy are for --epsilon")
        _evaluate(run, here, json)
        return
    mechanism = str(settings.job.get("privacy", {}).get("mechanism", "auto"))
    _share(run, here, (epsilon, mechanism), scores, out, json)


def _evaluate(path: Path, local: Local, json: bool) -> None:
    """Compute what depends on true labels, and print it."""
    from tpsl.prediction.model import TUNE
    from tpsl.training.after_training import evaluate_run
    from tpsl.training.run_folder import RunFolder
    from tpsl.tuning.after_search import evaluate_search

    if (path / TUNE).exists():
        show_tuned(evaluate_search(path, local, lambda run: _watched(run, local.loggers)), path, json)
        return
    run = RunFolder(path)
    with _watched(run, local.loggers) as watching:
        result = evaluate_run(run, local, watching)
    show_result(path, result, json)


@contextmanager
def _watched(run: RunFolder, log: list[str] | None) -> Iterator[Watching]:
    """Show a progress bar until the block ends, and tell the loggers."""
    from tpsl.net.peers import LABEL_PARTY
    from tpsl.training.loggers import run_logger
    from tpsl.training.observer import Watching

    with (
        progress_bar("evaluating") as progress,
        run_logger(run.job(), run.path, LABEL_PARTY, notice, log) as logger,
    ):
        yield Watching(logger, progress, notice)


def _share(
    run: Path, local: Local, release: tuple[float, str], scores: Path | None, out: Path | None, json: bool
) -> None:
    """Write metrics from noisy labels, and print what they cost."""
    from tpsl.data.dataset import load_label_party
    from tpsl.files import write_atomically
    from tpsl.mechanisms import build_mechanism
    from tpsl.net.peers import LABEL_PARTY
    from tpsl.prediction.scores import read_scores
    from tpsl.training.local import own_data
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.shared_evaluation import (
        SHARED_METRICS,
        EvaluationTerms,
        evaluate_new_records,
        evaluate_test_records,
    )

    folder, (epsilon, mechanism) = RunFolder(run), release
    job = folder.job()
    data = own_data(job, LABEL_PARTY, local.data, local.alignment).data
    source = folder.own_parts(LABEL_PARTY).source(LABEL_PARTY)
    with progress_bar("reading labels") as progress:
        side = load_label_party(data, progress, late_labels=job.has_late_labels, source=source)
    chosen, _ = build_mechanism(mechanism, side.records.classes, epsilon=epsilon)
    terms = EvaluationTerms(chosen, local.vault or folder.vault(), local.release_policy(), notice)
    if scores is None:
        found, total = evaluate_test_records(folder, side, terms)
    else:
        found, total = evaluate_new_records(folder, side, *read_scores(scores, side.records.class_names), terms)
    file = out or run / SHARED_METRICS
    write_atomically(file, found.to_json())
    spent = {"total_epsilon": total.epsilon, "total_delta": total.delta, "private": total.private}
    answer(json, {"file": str(file), **spent, **found.as_dict()}, _report(found, total, file))


def _report(found: SharedEvaluation, total: Spent, file: Path) -> Report:
    from tpsl.report.words import estimate_texts, spent_text

    spent = spent_text(total.epsilon, total.delta) + ("" if total.private else ", NOT PRIVATE")
    return Report(
        f"Evaluated on noisy labels of {found.records:,} {found.of}, {found.mechanism}",
        {
            **estimate_texts(found.metrics),
            "guarantee": f"{'the people in them' if total.who == 'person' else found.of} have spent {spent} in all",
            "to hand over": file,
        },
    )
