"""Looking at runs: `tpsl report` and `tpsl ui` show them, `tpsl attack` and `tpsl audit` test what they promise; and at
jobs before anything is released: `tpsl check` and `tpsl plan`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich import filesize
from rich.console import RenderableType
from rich.table import Table

from tpsl.cli import flags
from tpsl.cli.console import Facts, Report, answer, complain, notice, progress_bar, slim_table, stoppable
from tpsl.cli.flags import ALL_PARTS, LOCAL, Settings, argument, option
from tpsl.data.check import DataReport, check_data
from tpsl.data.dataset import load_label_party
from tpsl.mechanisms.effective_labels import effective_labels
from tpsl.net.messages import LABEL_PARTY
from tpsl.report.findings import keep_finding
from tpsl.report.ledgers import Memory
from tpsl.report.page import write_page
from tpsl.report.run_table import summary, summary_table, vault_sentences
from tpsl.report.words import MISSING, auc_text, bound_text, counted, duration_text, spent_text, spoken
from tpsl.run.job import Job, load_job
from tpsl.run.method import rare_label_warning_of, resolve_method
from tpsl.run.observer import Watching
from tpsl.run.releases import check_first_releases
from tpsl.run.run_folder import RunFolder

if TYPE_CHECKING:
    from tpsl import audit as audits
    from tpsl.attacks import AttackReport
    from tpsl.run.planning import Prediction


def report(
    runs: flags.RunsArgument,
    out: Annotated[Path, option("FILE", "The page.")] = Path("report.html"),
    party: flags.ForOption = "label",
    json: flags.JsonFlag = False,
) -> None:
    """Write a page about runs: what was promised, what it costs, what an attacker got.

    One HTML file that loads nothing, for the label party, because test AUCs depend on true labels; with --for it is for
    a feature party. The folder of a search stands for its runs. The first ε of a run is what its records have spent in
    all, as its vault says now, plus what runs beside it have noted of vaults that are gone.
    """
    from tpsl.model.trained import TrainedModel
    from tpsl.report.run_reading import read_view

    runs = [run.path for path in runs for run in TrainedModel.open(path).runs()]
    with progress_bar("reading runs") as progress:
        views, memory = [], Memory.of(runs)
        for done, run in enumerate(runs):
            progress(done, len(runs), run.name)
            views.append(read_view(run, party, memory=memory))
    title = ", ".join(view.name for view in views) if len(views) <= 3 else f"{len(views)} runs"
    write_page(out, views, title=title)
    content = {"page": str(out), "runs": [summary(view) for view in views]}
    answer(json, content, [summary_table(views), *vault_sentences(views), f"The page: {out.resolve()}"])


def ui(
    folder: Annotated[Path | None, argument("FOLDER", "Folder with runs. Default: runs, or this folder.")] = None,
    port: Annotated[int, option("PORT", "Port of 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
    party: flags.ForOption = "label",
    json: flags.JsonFlag = False,
) -> None:
    """Show the runs of a folder in a browser: a list to sort and search. Running jobs update live.

    It only reads, and only this machine can reach it. The address contains a secret: anyone who has it can read the
    page. Ctrl-C ends it.
    """
    from tpsl.report.live_page import LivePage
    from tpsl.report.watching import WatchedFolder

    folder = folder or (Path("runs") if Path("runs").is_dir() else Path())
    watched = WatchedFolder(folder, party)
    live = LivePage(watched, port)
    with progress_bar("reading runs") as progress:
        snapshot = watched.snapshot(progress)
    where = "this folder" if folder == Path() else folder
    answer(json, {"url": live.url, "folder": str(folder), "runs": len(snapshot.runs)}, [live.url])
    if not json:
        notice(f"Open this address in a browser; runs in {where} by now: {len(snapshot.runs):,}. Ctrl-C ends it.")
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

    One process without a GPU records its first 64 steps; other runs need `--set local.record_transcript=true`. Attack
    AUC 0.5 is guessing, 1 is complete recovery. Each attack stands beside the bound of its kind of attacker. What was
    found is kept in the label party's folder of the run, for `tpsl report`.
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
    rows = (
        (
            spoken(result.name),
            result.needs.replace("+", " + "),
            f"{result.auc:.4f} ±{(result.auc_high - result.auc_low) / 2:.4f}",
            auc_text(result.closed_form),
            bound_text(result.ceiling, result.ceiling_low, result.ceiling_high),
        )
        for result in report.attacks
    )
    numbers = ("AUC", "Theory", "Bound")
    table = slim_table(("Attack", "The attacker has", *numbers), rows, numbers=numbers)
    table.columns[0].no_wrap = True
    named = f"{report.mechanism}, {report.estimator}" if report.steps else report.mechanism
    facts: Facts = {"run": run, "mechanism": named, "guarantee": spent_text(report.epsilon, report.delta)}
    headline = "Attacked: AUC 0.5 is guessing, 1 is complete recovery"
    found = Report(headline, facts, {"see it as a page": f"tpsl report {run}"}, [table])
    answer(json, {"run": str(run), **report.as_dict()}, found)
    for line in () if json else _explanations(report):
        notice(line)


def _explanations(report: AttackReport) -> Iterator[str]:
    if math.isfinite(report.epsilon) and report.steps:
        bound = bound_text(report.ceiling, report.ceiling, report.ceiling)
        yield f"Bound {bound}: what ε allows an attacker who scores by the noisy label alone, averaged over the noise."
    if any(result.scored_by == "statistic" for result in report.attacks):
        yield "'statistic': bound by ε, δ and ρ; this attacker is granted the noisy sum, all vectors, all other labels."
    if report.predicted_from:
        yield (
            "Bound ≈: gradients and embeddings also carry what features say about the label, which ε does not bound; "
            "this is the AUC of noisy label and best prediction from features together (no transcript: of the "
            f"prediction alone), estimated with true labels from {' and '.join(report.predicted_from)}."
        )
    for result in report.attacks:
        if result.above_ceiling:
            yield f"{spoken(result.name)} is above its bound by more than chance: run tpsl audit, this may be a bug."
    if not report.steps:
        yield "No gradients were sent, so no other attack exists."
        return
    for reason in dict.fromkeys(report.not_run.values()):
        names = (spoken(name) for name, why in report.not_run.items() if why == reason)
        yield f"Not run: {', '.join(names)}; reason: it {reason}"


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
    only: Annotated[list[str] | None, option("NAME", f"One part, of {', '.join(_LOOKED_AT)}; may be repeated.")] = None,
    canaries: Annotated[int, option("NUMBER", "Records that get fair-coin labels.", min=1)] = 20_000,
    confidence: Annotated[float, option("NUMBER", "Of the lower bound that is shown; accusations are surer.")] = 0.95,
    out: Annotated[Path | None, option("FOLDER", "Keep the audit's runs here. Default: they are deleted.")] = None,
    json: flags.JsonFlag = False,
) -> None:
    """Does a job keep the ε that it claims? Exit status 1 if any part of the audit finds that it does not.

    For the label party. Canaries: an attack guesses fair-coin labels from the transcript; its success says how large ε
    must at least be. Releases: made-up labels go through the vault many times, no noise may repeat. Statistic, if the
    job has one: a feature party that chooses its vectors guesses fair coins. Replay: true labels are flipped, noisy
    ones kept, and no byte that is sent may change. Vault, for a run folder: tests the noise that was released.
    Findings about a run folder are kept for `tpsl report`. A sound job is accused four times in a million audits.
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
    for sentence in found.vault.cannot_see if found.vault is not None and not json else ():
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
        values = {spoken(name): getattr(result, name) for name in _LOOKED_AT[part]}
        shown = (f"{name} {each:,.0f}" if isinstance(each, int | float) else str(each) for name, each in values.items())
        rows.append((part, ", ".join(shown), "passed" if result.passed else "FAILED"))
    yield slim_table(("part", "looked at", "verdict"), rows)
    if found.replay is not None and found.replay.passed:
        yield "every byte of the transcript and every weight is the same"


def check(
    job: flags.JobArgument,
    changes: flags.SetOption = None,
    local: flags.LocalsOption = None,
    json: flags.JsonFlag = False,
) -> None:
    """Look at the data of a job before anything is released: counts, and what is strange.

    Reads the data of every party that is here, the true labels too where the label party's is: then what is printed
    must stay with the label party. Exit status 1 if there are errors, 0 if there are none or only warnings.
    """
    parties = Settings.of(changes).load_parties(job, local)
    agreed, own = parties.job, parties.own.items()
    sources = {party: source for party, parts in own if (source := parts.source(party)) is not None}
    with progress_bar("reading") as progress:
        found = check_data(agreed.data, sources=sources, progress=progress)
    worth = None
    if found.passed and found.classes and agreed.trains:
        mechanism, counts = agreed.privacy.build(agreed.classes), list(_training_classes(agreed, found).values())
        worth = round(effective_labels(mechanism, counts, agreed.privacy.draws))
    tell_of_rare_labels(agreed, found)
    answer(json, {**found.as_dict(), "effective_labels": worth}, _for_people(found, agreed, worth))
    if found.classes:
        notice("true labels were read: what is printed stays with the label party")
    if not agreed.hands_over and agreed.needs_split_training() is None:
        notice("the label party has labels alone: with training.exchange: labels these cross, noisy, and no embedding")
    if not found.passed:
        raise typer.Exit(1)


def tell_of_rare_labels(job: Job, found: DataReport) -> None:
    """Add a warning to what was found if noise will drown the rarest class."""
    if found.passed and (warning := rare_label_warning_of(job, _training_classes(job, found))):
        found.warn(LABEL_PARTY, warning)


def _training_classes(job: Job, found: DataReport) -> dict[str, int]:
    """Return about how many training records each class has."""
    return {name: round(count * (1 - job.data.test_fraction)) for name, count in found.classes.items()}


def _for_people(found: DataReport, job: Job, worth: int | None) -> Iterator[str | Table]:
    numbers = ("missing", "different values")
    for party in found.parties:
        yield f"{party.party}: {party.records:,} records in {party.source}"
        rows = [
            (each.name, spoken(each.kind), f"{each.missing:,}", "" if each.distinct is None else f"{each.distinct:,}")
            for each in party.columns
        ]
        if rows:
            yield slim_table(("column", "kind", *numbers), rows, numbers=numbers)
    for name, reason in found.not_here.items():
        yield f"{name}: its data is not here, and was not checked ({reason})"
    if found.classes:
        yield "labels: " + ", ".join(f"{name}: {count:,}" for name, count in found.classes.items())
    if worth is not None:
        mechanism = job.privacy.build(job.classes)
        yield f"{mechanism}: the noisy labels of the training records are worth {worth:,} clean ones"
    yield from (f"{finding.level}: {finding.text}" for finding in found.findings)
    yield "no errors" if found.passed else "the job cannot run on these data"


def plan(
    job: flags.JobArgument,
    rows: Annotated[int, option("NUMBER", "Records of the job.", min=10)],
    run: Annotated[Path | None, option("FOLDER", "The run whose speed is assumed, for the time.")] = None,
    changes: flags.SetOption = None,
    json: flags.JsonFlag = False,
) -> None:
    """Predict the traffic and the time of a job, split and with its noisy labels handed over.

    Nothing is trained, and no table is read. Example: tpsl plan job.yaml --rows 100000000 --run runs/part
    """
    from tpsl.run.planning import Counts, plan

    asked = Settings.of(changes, parts=[part for part in ALL_PARTS if part != LOCAL]).load_job(job)
    asked = resolve_method(asked, lambda: Counts.of(asked, rows).train, notice)
    found = plan(asked, rows)
    speed = None if run is None else _speed_of(run)
    content = {"samples_per_second": speed, "predictions": [prediction.as_dict(speed) for prediction in found]}
    answer(json, content, _planned(job, found, speed))


def _speed_of(run: Path) -> float:
    speed = RunFolder(run).finished_result().samples_per_second
    if not speed:
        raise ValueError(f"{run}: no network was trained, so it has no speed")
    return speed


_NAMES = {"gradients": "split", "labels": "handed over"}
"""How a job's noisy labels, or what follows from them, get to the feature parties."""


def _planned(job: Path, found: Sequence[Prediction], speed: float | None) -> Report:
    names = [_NAMES[prediction.job.training.exchange] for prediction in found]
    table = slim_table(("", *names, "because"), _plan_rows(found, speed), numbers=names)
    assumed = ["all epochs are trained"] if found[0].job.training.patience else []
    if speed is not None:
        assumed += ["machines as in that run", "evaluations as fast as training", "a line that is no limit"]
    facts = {"assumed": ", ".join(assumed)} if assumed else {}
    return Report("What the job will take", facts, {"train, in one process": f"tpsl train {job}"}, [table])


def _plan_rows(found: Sequence[Prediction], speed: float | None) -> Iterator[list[str]]:
    """Yield the rows of the table: what, its value for each prediction, and where it comes from."""
    counts = found[0].counts
    if speed is not None:
        times = [duration_text(each.seconds(speed)) for each in found]
        yield ["time", *times, f"{speed:,.0f} records/s"]
    yield ["records", *(f"{each.counts.rows:,}" for each in found), f"{counts.train:,} to train on"]
    yield ["steps", *(f"{each.counts.steps:,}" for each in found), f"of {found[0].job.training.batch_size:,} records"]
    for to_label in (True, False):
        sizes = [filesize.decimal(each.bytes(to_label=to_label)) for each in found]
        yield ["to label party" if to_label else "from label party", *sizes, "with TLS"]
        crossing = (each for one in found for each in one.crossing if each.width(to_label=to_label))
        for method in dict.fromkeys(each.method for each in crossing):
            alike = [[each for each in one.crossing if each.method == method] for one in found]
            totals = [sum(each.bytes(to_label=to_label) for each in own) for own in alike]
            calls = counted(max(sum(each.calls for each in own) for own in alike), "message")
            yield [f"  {method}", *(filesize.decimal(size) if size else MISSING for size in totals), calls]
