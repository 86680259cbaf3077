"""`tpsl attack`: what a feature party could make of a recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, progress_bar, say, stdout


def attack(
    run: Annotated[Path, typer.Argument(help="Run folder, recorded with --record-transcript.")],
    which: Annotated[
        list[str] | None, typer.Option("--attack", help="Run only this attack; can be given more than once.")
    ] = None,
    skip: Annotated[int, typer.Option(min=0, help="Leave the first so many steps out of the AUCs.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Attack a run by every attack of the suite; the label party scores the guesses with its true labels.

    Attack AUC 0.5 is guessing, 1 is complete recovery. The ceiling is what ε allows any attack that uses the
    transcript alone; attacks with features or known labels are compared with 'no_transcript', which has those and
    nothing else. What was found is kept in the label party's folder of the run, for `tpsl report`.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from tpsl.attacks import run_attacks
    from tpsl.data.dataset import load_label_party
    from tpsl.report.findings import keep_finding
    from tpsl.report.words import rounded_up
    from tpsl.training.run_folder import RunFolder

    job = RunFolder(run).job()
    notice("loading the true labels, to score the guesses")
    labels = load_label_party(job.data).labels
    with progress_bar("attacking") as progress:
        report = run_attacks(run, labels, which=which or None, skip=skip, progress=progress)
    keep_finding(run, "attacks", report.as_dict())
    if json:
        print_json({"run": str(run), **report.as_dict()})
        return
    budget = rounded_up(report.epsilon, 6)
    say(f"{run}: {report.mechanism}, {report.estimator}, ε = {budget}")
    table = Table(box=SIMPLE_HEAD)
    for heading in ("Attack", "The attacker has"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "Attack")
    for heading in ("AUC", "Closed form", "Ceiling"):
        table.add_column(heading, justify="right", no_wrap=heading == "AUC")
    for result in report.attacks:
        from_features = "features" in result.needs
        table.add_row(
            result.name,
            result.needs.replace("+", " + "),
            f"{result.auc:.4f} ±{(result.auc_high - result.auc_low) / 2:.4f}",
            "–" if result.closed_form is None else f"{result.closed_form:.4f}",
            "–" if from_features else f"{result.ceiling:.4f}",
        )
    stdout.print(table)
    notice(
        "Gradients also carry what features say about the label, so an attack can lie above the ceiling by what "
        "features alone give away; compare it with no_transcript."
    )
    for name, reason in report.not_run.items():
        notice(f"{name}: not run, it {reason}")
