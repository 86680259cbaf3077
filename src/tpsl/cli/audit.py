"""`tpsl audit`: does a job keep the ε that it claims?"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, complain, notice, print_json, progress_bar, say
from tpsl.cli.data_options import DataName
from tpsl.cli.privacy_options import (
    DeltaOption,
    DrawsOption,
    EpsilonOption,
    EstimatorOption,
    MechanismOption,
    SigmaOption,
    given,
    privacy_fields,
)
from tpsl.cli.release_options import MaxEpsilonOption, NotPrivateFlag, check_own_release, release_policy

if TYPE_CHECKING:
    from tpsl import audit as audits


def audit(
    job: Annotated[
        Path | None, typer.Argument(help="Job file or run folder. Without one, the options below make a job.")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Record and replay: flip true labels, keep noisy ones, compare every byte.")
    ] = False,
    canaries: Annotated[int, typer.Option(min=1, help="Records that get fair-coin labels.")] = 20_000,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    data: Annotated[DataName | None, typer.Option(help="Data set.")] = None,
    path: Annotated[Path | None, typer.Option(help="criteo, avazu: Kaggle's file.")] = None,
    rows: Annotated[int | None, typer.Option(help="Use only so many records.")] = None,
    mechanism: MechanismOption = None,
    epsilon: EpsilonOption = None,
    sigma: SigmaOption = None,
    delta: DeltaOption = None,
    draws: DrawsOption = None,
    estimator: EstimatorOption = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="How often each record is used.")] = None,
    max_epsilon: MaxEpsilonOption = None,
    not_private: NotPrivateFlag = False,
    out: Annotated[
        Path | None, typer.Option(help="Keep the audit's runs in this new folder. Default: they are deleted.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Bound a job's ε from below by an attack on canaries; exit status 1 if the bound exceeds the claim.

    For the label party: canaries are records of the job whose labels are replaced by fair coins. The job is trained
    with them, the strongest attack guesses the coins from the transcript, and its success says how large ε must at
    least be. For a run folder as it is, what was found is kept in its label party's folder, for `tpsl report`.
    """
    from tpsl import audit as auditing
    from tpsl.report.findings import keep_finding
    from tpsl.training import load_job, make_job

    overrides = {
        "data": given(source=data, path=str(path) if path else None, rows=rows),
        "privacy": {**privacy_fields(mechanism, epsilon, sigma, delta), **given(estimator=estimator, draws=draws)},
        "training": given(epochs=epochs),
    }
    run = job if job is not None and job.is_dir() else None
    if run is not None:
        job = run / "job.yaml"
    agreed = load_job(job, overrides) if job else make_job({}, overrides, "options")
    check_own_release(agreed, release_policy(max_epsilon, not_private))
    folder = out or Path(tempfile.mkdtemp(prefix="tpsl-audit-"))
    try:
        with progress_bar("replay" if replay else "audit") as progress:
            if replay:
                replayed = auditing.replay(agreed, folder, progress=progress, notice=notice)
            else:
                found = auditing.audit(
                    agreed, folder, canaries=canaries, confidence=confidence, progress=progress, notice=notice
                )
    finally:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
    if run is not None and (run / "label").is_dir() and agreed == load_job(run / "job.yaml"):
        keep_finding(run, "replay" if replay else "audit", (replayed if replay else found).as_dict())
    if replay:
        _report_replay(replayed, json)
    else:
        _report_audit(found, json)


def _report_audit(found: audits.AuditResult, json: bool) -> None:
    if json:
        print_json(found.as_dict())
    else:
        bound = f"audited ε ≥ {found.lower_bound:.4f} at {100 * found.confidence:g} % confidence"
        say(f"claimed ε = {found.claimed:.6g}, {bound}")
        say(f"{found.right:,} of {found.guessed:,} coins guessed right ({found.canaries:,} canaries)")
    if not found.passed:
        complain(
            f"the audit found ε ≥ {found.lower_bound:.4f}, more than the claimed {found.claimed:.6g} "
            f"(a mechanism that keeps its claim does so well with probability {found.p_value:.2g})"
        )
        raise typer.Exit(1)


def _report_replay(replayed: audits.ReplayResult, json: bool) -> None:
    if json:
        print_json(replayed.as_dict())
    else:
        say(f"{replayed.flipped:,} true labels flipped; {replayed.files} files, {replayed.bytes:,} bytes compared")
    if not replayed.passed:
        first = replayed.differences[0]
        complain(f"true labels leak: {len(replayed.differences)} files differ, the first is {first.file}")
        raise typer.Exit(1)
    if not json:
        say("every byte of the transcript and every weight is the same")
