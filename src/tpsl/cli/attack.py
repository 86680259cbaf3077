"""`tpsl attack`: what a feature party could make of a recorded run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import Report, answer, notice, progress_bar, slim_table
from tpsl.cli.flags import JsonFlag, RunArgument

if TYPE_CHECKING:
    from rich.table import Table

    from tpsl.attacks import AttackReport


def attack(
    run: RunArgument,
    which: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Run only this attack; may be repeated.", show_default=False),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Attack a run by every attack of the suite; the label party scores the guesses with its true labels.

    One process without a GPU records its first 64 steps; other runs need `--set local.record_transcript=true`.

    Attack AUC 0.5 is guessing, 1 is complete recovery. Each attack stands beside the bound of its own kind of attacker:
    what ε allows an attacker who reads noisy labels; for attackers who profit from features, the AUC of noisy label and
    best prediction from features together, estimated on these records; for 'no transcript', that of the prediction
    alone.
    What was found is kept in the label party's folder of the run, for `tpsl report`.
    """
    from tpsl.attacks import run_attacks
    from tpsl.attacks.attacked_run import require_parts_of_all
    from tpsl.data.dataset import load_label_party
    from tpsl.learners.learning import require_no_learner
    from tpsl.net.peers import LABEL_PARTY
    from tpsl.report.findings import keep_finding
    from tpsl.report.words import rounded_up
    from tpsl.training.run_folder import RunFolder

    folder = RunFolder(run)
    require_no_learner(folder, "it has read the noisy labels and sent nothing, so there is no transcript to attack")
    require_parts_of_all(folder)
    job = folder.job()
    notice("loading the true labels, to score the guesses")
    source = folder.own_parts(LABEL_PARTY).source(LABEL_PARTY)
    labels = load_label_party(job.data, source=source).labels
    with progress_bar("attacking") as progress:
        chosen = [name.replace(" ", "_") for name in which or ()] or None
        report = run_attacks(run, labels, which=chosen, progress=progress)
    keep_finding(run, "attacks", report.as_dict())
    named = f"{report.mechanism}, {report.estimator}" if report.steps else report.mechanism
    slack = f", δ = {rounded_up(report.delta, 2)}" if report.delta else ""
    found = Report(
        "Attacked: AUC 0.5 is guessing, 1 is complete recovery",
        {"run": run, "mechanism": named, "guarantee": f"ε = {rounded_up(report.epsilon, 6)}{slack}"},
        {"see it as a page": f"tpsl report {run}"},
        [_table(report)],
    )
    answer(json, {"run": str(run), **report.as_dict()}, found)
    for line in () if json else _explanations(report):
        notice(line)


def _table(report: AttackReport) -> Table:
    from tpsl.report.words import bound_text, spoken

    rows = (
        (
            spoken(result.name),
            result.needs.replace("+", " + "),
            f"{result.auc:.4f} ±{(result.auc_high - result.auc_low) / 2:.4f}",
            "–" if result.closed_form is None else f"{result.closed_form:.4f}",
            bound_text(result.ceiling, result.ceiling_low, result.ceiling_high),
        )
        for result in report.attacks
    )
    numbers = ("AUC", "Theory", "Bound")
    table = slim_table(("Attack", "The attacker has", *numbers), rows, numbers=numbers)
    table.columns[0].no_wrap = True
    return table


def _explanations(report: AttackReport) -> Iterator[str]:
    """Say what the bounds are, which attack lies above its own by more than chance, and which were not run."""
    from tpsl.report.words import bound_text, spoken

    if math.isfinite(report.epsilon) and report.steps:
        bound = bound_text(report.ceiling, report.ceiling, report.ceiling)
        proved = f"Bound {bound}: what ε allows an attacker who scores by the noisy label alone"
        yield f"{proved}, on average over the noise."
    if any(result.scored_by == "statistic" for result in report.attacks):
        yield (
            "'statistic': feature parties are told nothing of it. This attacker is granted the noisy sum, all vectors "
            "and every label but one; its bound is what ε, δ and ρ allow."
        )
    if report.predicted_from:
        yield (
            "Bound ≈: gradients and embeddings also carry what features say about the label, which ε does not bound; "
            "this is the AUC of noisy label and best prediction from features together (no transcript: of the "
            f"prediction alone), estimated with true labels from {' and '.join(report.predicted_from)}."
        )
    for result in report.attacks:
        name = spoken(result.name)
        if result.above_ceiling:
            yield f"{name} is above its bound by more than chance: run tpsl audit, this may be a bug."
    if not report.steps:
        yield "No gradients were sent, so no other attack exists."
        return
    for reason in dict.fromkeys(report.not_run.values()):
        names = [spoken(name) for name, why in report.not_run.items() if why == reason]
        yield f"Not run: {', '.join(names)} (each {reason})." if len(names) > 1 else f"{names[0]}: not run, it {reason}"
