"""Looking at runs: `tpsl report` and `tpsl ui` show them, `tpsl attack` and `tpsl audit` test what they promise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import RenderableType

from tpsl.cli import flags
from tpsl.cli.console import Facts, Report, answer, complain, notice, progress_bar, slim_table, stoppable
from tpsl.cli.flags import argument, option
from tpsl.cli.settings import Settings
from tpsl.data.dataset import load_label_party
from tpsl.net.peers import LABEL_PARTY
from tpsl.report.findings import keep_finding
from tpsl.report.known_vaults import Memory
from tpsl.report.page import write_page
from tpsl.report.run_table import summary, summary_table, vault_sentences
from tpsl.report.version_view import version_rows
from tpsl.report.words import bound_text, rounded_up, spoken
from tpsl.training.job import load_job
from tpsl.training.observer import Watching
from tpsl.training.releases import check_first_releases
from tpsl.training.run_folder import RunFolder

if TYPE_CHECKING:
    from tpsl import audit as audits
    from tpsl.attacks import AttackReport


def report(
    runs: flags.RunsArgument,
    out: Annotated[Path, option("FILE", "The page.")] = Path("report.html"),
    party: flags.ForOption = "label",
    vault: Annotated[
        Path | None, option("FOLDER", "Where the runs' vault is now. Default: where each run has noted it.")
    ] = None,
    json: flags.JsonFlag = False,
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
    party: flags.ForOption = "label",
    json: flags.JsonFlag = False,
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
    count, where = len(snapshot.runs), "this folder" if folder == Path() else str(folder)
    runs = f"{count:,} run{'' if count == 1 else 's'}" if count else "the first run as soon as there is one,"
    answer(json, {"url": live.url, "folder": str(folder), "runs": count}, [live.url])
    if not json:
        notice(f"Open this address in a browser: it shows {runs} in {where}. Ctrl-C ends it.")
    for problem in snapshot.problems:
        notice(f"not shown: {problem}")
    with suppress(KeyboardInterrupt), stoppable("the page has ended"):
        live.serve()


def attack(
    run: flags.RunArgument,
    which: Annotated[list[str] | None, option("NAME", "Run only this attack; may be repeated.", "--only")] = None,
    json: flags.JsonFlag = False,
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
    from tpsl.handover.learning import require_no_learner

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
    facts: Facts = {"run": run, "mechanism": named, "guarantee": f"ε = {rounded_up(report.epsilon, 6)}{slack}"}
    headline = "Attacked: AUC 0.5 is guessing, 1 is complete recovery"
    found = Report(headline, facts, {"see it as a page": f"tpsl report {run}"}, [table])
    answer(json, {"run": str(run), **report.as_dict()}, found)
    for line in () if json else _explanations(report):
        notice(line)


def _explanations(report: AttackReport) -> Iterator[str]:
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


_LOOKED_AT = {
    "canaries": ("right", "guessed", "canaries", "neighbours"),
    "releases": ("releases", "records", "mechanism"),
    "statistic": ("right", "canaries", "expected", "releases", "noise"),
    "replay": ("flipped", "frames", "frame_bytes", "files", "bytes"),
    "vault": ("path",),
}
"""The parts of an audit, and what is told of each."""


def audit(
    job: Annotated[Path | None, argument("JOB", "Job file or run folder. Without one, the options make a job.")] = None,
    changes: flags.SetOption = None,
    local: flags.LocalsOption = None,
    epsilon: flags.EpsilonOption = None,
    only: Annotated[
        list[str] | None, option("NAME", f"Only this part, of {', '.join(_LOOKED_AT)}; may be repeated.")
    ] = None,
    canaries: Annotated[int, option("NUMBER", "Records that get fair-coin labels.", min=1)] = 20_000,
    confidence: Annotated[
        float, option("NUMBER", "Confidence of the lower bound that is shown. Accusations are surer than this.")
    ] = 0.95,
    handed: Annotated[
        Path | None, option("FOLDER", "What `vault release --out` wrote, to compare with the run's vault.")
    ] = None,
    out: Annotated[
        Path | None, option("FOLDER", "Keep the audit's runs in this new folder. Default: they are deleted.")
    ] = None,
    json: flags.JsonFlag = False,
) -> None:
    """Does a job keep the ε that it claims? Exit status 1 if any part of the audit finds that it does not.

    For the label party. Canaries: records with fair-coin labels, which an attack on the transcript guesses; its success
    says how large ε must at least be. Releases: made-up labels go through the vault many times, no noise may repeat,
    and what is handed over is what was released. Statistic, if the job has one: a feature party that chooses its
    vectors as it likes guesses fair coins. Replay: true labels are flipped before the data are read, noisy ones are
    kept, and no byte that is sent may change. Vault, for a run folder: the noise that was really released is tested.
    For a run folder as it is, what was found is kept in its label party's folder, for `tpsl report`. A sound job is
    accused four times in a million audits.
    """
    from tpsl import audit as auditing

    run = job if job is not None and job.is_dir() else None
    parties = Settings.of(changes, {"privacy.epsilon": epsilon}).load_parties(run / "job.yaml" if run else job, local)
    # The audit's releases have vaults of their own.
    check_first_releases(parties.job, parties.job.classes, 0, parties.label.release_policy())
    with ExitStack() as stack:
        found = auditing.examine(
            parties.job,
            out or Path(stack.enter_context(TemporaryDirectory(prefix="tpsl-audit-", ignore_cleanup_errors=True))),
            only=cast("list[audits.Part]", only or list(_LOOKED_AT)),
            run=run,
            handed=handed,
            canaries=canaries,
            confidence=confidence,
            own=parties.own,
            watching=Watching(progress=stack.enter_context(progress_bar("audit")), notice=notice),
        )
    if run is not None and (run / "label").is_dir() and parties.job == load_job(run / "job.yaml"):
        if found.canaries is not None:
            keep_finding(run, "audit", asdict(found.canaries))
        if found.replay is not None:
            keep_finding(run, "replay", asdict(found.replay))
        summary = {"passed": found.passed, "accusations": found.accusations, "parts": list(found.parts)}
        keep_finding(run, "examination", summary)
    answer(json, found.as_dict(), _verdicts(found))
    if found.vault is not None and not json:
        for sentence in found.vault.cannot_see:
            notice(sentence)
    for accusation in found.accusations:
        complain(accusation)
    if not found.passed:
        raise typer.Exit(1)


def _verdicts(found: audits.Examination) -> Iterator[str | RenderableType]:
    yield from Report("Audited: nothing contradicts ε" if found.passed else "Audited: the job does NOT keep its ε")
    if canaries := found.canaries:
        bound = f"audited ε ≥ {canaries.lower_bound:.4f} at {100 * canaries.confidence:g} % confidence"
        yield f"claimed ε = {canaries.claimed:.6g}, {bound}"
    if statistic := found.statistic:
        claimed = f"claimed ε = {statistic.claimed:.6g}, audited ε ≥ {statistic.lower_bound:.4f}"
        if statistic.rho is not None:
            claimed = f"claimed ρ = {statistic.rho:.6g}, audited ρ ≥ {statistic.rho_lower_bound:.4g}"
        yield f"statistic: {claimed} at {100 * statistic.confidence:g} % confidence"
    rows = []
    for part, result in found.parts.items():
        values = {name.replace("_", " "): getattr(result, name) for name in _LOOKED_AT[part]}
        numbers = (
            f"{name} {each:,.0f}" if isinstance(each, int | float) else str(each) for name, each in values.items()
        )
        rows.append((part, ", ".join(numbers), "passed" if result.passed else "FAILED"))
    yield slim_table(("part", "looked at", "verdict"), rows)
    if found.replay is not None and found.replay.passed:
        yield "every byte of the transcript and every weight is the same"
