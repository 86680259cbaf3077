"""`tpsl audit`: does a job keep the ε that it claims?"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tpsl.cli.console import JsonFlag, complain, notice, print_json, progress_bar, say, stdout
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
    only: Annotated[
        str, typer.Option(help="Leave the other parts out: some of canaries,releases,replay,vault.")
    ] = "canaries,releases,replay,vault",
    replay: Annotated[
        bool, typer.Option("--replay", help="Only record and replay: flip true labels, keep noisy ones, compare.")
    ] = False,
    canaries: Annotated[int, typer.Option(min=1, help="Records that get fair-coin labels.")] = 20_000,
    confidence: Annotated[
        float, typer.Option(help="Confidence of the lower bound that is shown. Accusations are surer than this.")
    ] = 0.95,
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
    """Does a job keep the ε that it claims? Exit status 1 if any part of the audit finds that it does not.

    For the label party. Canaries: records with fair-coin labels, which an attack on the transcript guesses; its success
    says how large ε must at least be. Releases: made-up labels go through the vault many times, and no noise may
    repeat. Replay: true labels are flipped before the data are read, noisy ones are kept, and no byte that is sent may
    change. Vault, for a run folder: the noise that was really released is tested. For a run folder as it is, what was
    found is kept in its label party's folder, for `tpsl report`. A sound job is accused three times in a million
    audits.
    """
    from tpsl import audit as auditing
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
    parts = ["replay"] if replay else [part.strip() for part in only.split(",")]
    folder = out or Path(tempfile.mkdtemp(prefix="tpsl-audit-"))
    try:
        with progress_bar("audit") as progress:
            found = auditing.examine(
                agreed,
                folder,
                only=cast("list[audits.Part]", parts),
                run=run,
                canaries=canaries,
                confidence=confidence,
                progress=progress,
                notice=notice,
            )
    finally:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
    if run is not None and (run / "label").is_dir() and agreed == load_job(run / "job.yaml"):
        _keep(run, found)
    if json:
        print_json(found.as_dict())
    else:
        _show(found)
    for accusation in found.accusations:
        complain(accusation)
    if not found.passed:
        raise typer.Exit(1)


def _keep(run: Path, found: audits.Examination) -> None:
    from tpsl.report.findings import keep_finding

    if found.canaries is not None:
        keep_finding(run, "audit", found.canaries.as_dict())
    if found.replay is not None:
        keep_finding(run, "replay", found.replay.as_dict())
    summary = {"passed": found.passed, "accusations": found.accusations, "parts": list(found.parts)}
    keep_finding(run, "examination", summary)


def _show(found: audits.Examination) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if found.canaries is not None:
        bound = f"audited ε ≥ {found.canaries.lower_bound:.4f} at {100 * found.canaries.confidence:g} % confidence"
        say(f"claimed ε = {found.canaries.claimed:.6g}, {bound}")
    table = Table(box=SIMPLE_HEAD)
    for heading in ("Part", "Looked at", "Verdict"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "Looked at")
    for part, result in found.parts.items():
        table.add_row(part, _looked_at(found, part), "passed" if result.passed else "FAILED")
    stdout.print(table)
    if found.replay is not None and found.replay.passed:
        say("every byte of the transcript and every weight is the same")
    if found.vault is not None:
        for sentence in found.vault.cannot_see:
            notice(sentence)


def _looked_at(found: audits.Examination, part: audits.Part) -> str:
    if part == "canaries" and (canaries := found.canaries):
        return (
            f"{canaries.right:,} of {canaries.guessed:,} coins guessed right ({canaries.canaries:,} canaries, "
            f"{canaries.neighbours:,} pairs of neighbours)"
        )
    if part == "releases" and (releases := found.releases):
        return f"{releases.releases} releases of {releases.records:,} made-up labels with {releases.mechanism}"
    if part == "replay" and (replayed := found.replay):
        return (
            f"{replayed.flipped:,} true labels flipped; {replayed.frames:,} messages of {replayed.frame_bytes:,} bytes "
            f"and {replayed.files} files of {replayed.bytes:,} bytes compared"
        )
    return f"chain, records, releases and noise of {found.vault.path}" if found.vault else ""
