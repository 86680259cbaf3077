"""The commands of one party of a job, or of a search: serve, join, evaluate, and before that align and certs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from tpsl.cli import flags
from tpsl.cli.console import Facts, Report, answer, from_here, notice, progress_bar, stoppable, warn
from tpsl.cli.flags import LOCAL, Settings, argument, flag, option, the_only
from tpsl.cli.live import Live
from tpsl.cli.on_ray import trains_on_ray
from tpsl.cli.run_result import show_result, show_tuned
from tpsl.data.config import TableData
from tpsl.net.certificates import AUTHORITY, party_folders
from tpsl.net.messages import LABEL_PARTY
from tpsl.report.words import counted, records_text
from tpsl.run.job import Job, load_job
from tpsl.run.local import Local, own_data, party_of
from tpsl.run.loggers import run_logger
from tpsl.run.observer import Watching
from tpsl.run.run_folder import RunFolder

if TYPE_CHECKING:
    from tpsl.alignment.parties import Aligned
    from tpsl.select.candidates import Trial
    from tpsl.select.joint_search import JointSearch, Watched
    from tpsl.workers import Workers

Result = TypeVar("Result")
GOES_ON = "the same command goes on where it stopped"
TuneOption = Annotated[str | None, option("FILE", "Search together: YAML list of changes to the job, or 'auto'.")]


@dataclass(frozen=True)
class Side:
    """One side of a job, ready to run."""

    job: Job
    party: str
    local: Local
    out: Path

    @classmethod
    def of(cls, settings: Settings, job_file: Path, local_file: Path | None, party: str | None = None) -> Side:
        """Return the side that the files and the options describe; `party` if the command says which it is."""
        job = settings.load_job(job_file)
        local = settings.load_local(local_file, job)
        me = party_of(job, local, party or local.party)
        return cls(job, me, local, local.out or Path("runs") / f"{job_file.stem}-{me}")

    @property
    def workers(self) -> Workers:
        """The workers of this side. The first one shows how the side runs and what comes out."""
        from tpsl.workers import Workers

        return Workers.of_this_process(self.local.device)

    def run(self, role: Callable[..., Result], ray: int | None) -> Result | None:
        """Have the role run, in workers on Ray if there is a count of them; None where another process shows it."""
        from tpsl.run.one_process import ALL_STEPS

        if trains_on_ray(ray, self.out, self.local.device, log_json=self.local.logs_json):
            return None
        with self.watched() as watching:
            result = role(
                watching=watching,
                record_steps=ALL_STEPS if self.local.record_transcript else 0,
                insecure_loopback=self.local.insecure_loopback,
            )
        return result if self.workers.is_first else None

    @contextmanager
    def live(self) -> Iterator[Live]:
        """Show how this side runs until the block ends; of several workers all but the first show what ends them."""
        workers, log_json = self.workers, self.local.logs_json
        others = "feature parties wait" if self.party == LABEL_PARTY else "label party waits"
        with (
            stoppable(f"{GOES_ON}; the {others} for it", log_json=log_json or not workers.is_first),
            Live(
                self.party,
                peers=self.job.data.feature_parties if self.party == LABEL_PARTY else [LABEL_PARTY],
                epochs=self.job.training.epochs,
                may_end_early=self.job.training.patience > 0,
                log_json=log_json,
                metrics=self.local.metrics_address(workers),
                only_errors=not workers.is_first,
            ) as live,
        ):
            yield live

    @contextmanager
    def watched(self) -> Iterator[Watching]:
        """Show how this side runs until the block ends, and tell the loggers."""
        with (
            self.live() as live,
            run_logger(self.job, self.out, self.party, live.notice, self.local.loggers, {"display": live})
            if self.workers.is_first
            else nullcontext(live) as observer,
        ):
            yield Watching(observer, live.progress, live.notice, live.watch, live.notice)


def serve(
    job: flags.JobArgument,
    changes: flags.SetOption = None,
    local: flags.LocalOption = None,
    listen: flags.ListenOption = None,
    certs: flags.CertsOption = None,
    out: flags.OutOption = None,
    vault: flags.VaultOption = None,
    tune: TuneOption = None,
    ray: flags.RayOption = None,
    json: flags.JsonFlag = False,
) -> None:
    """Be the label party: wait for the feature parties of the job and train with them.

    A job that asks for more than you permit is refused before the port is opened. The same command continues an
    interrupted run. `tpsl label evaluate` computes test metrics and the local head afterwards. Example:

    tpsl label serve job.yaml --listen 0.0.0.0:7443 --certs certs/label

    Several processes train together if torchrun starts them: torchrun --nproc-per-node 2 -m -- tpsl label serve …
    """
    given = {"local.listen": listen, "local.certificates": certs, "local.out": out, "local.vault": vault}
    side = Side.of(Settings.of(changes, given), job, local, "label")
    from tpsl.run.over_network import serve as run
    from tpsl.select.joint_search import tune_as_label

    if tune is not None:
        found = tune_as_label(*_search(side, tune))
        show_tuned(found, side.out, json, {"test metrics": f"tpsl label evaluate {side.out}"})
    elif (result := side.run(partial(run, side.job, side.local, side.out), ray)) is not None:
        show_result(side.out, result, json, evaluated=False)


def join(
    job: flags.JobArgument,
    changes: flags.SetOption = None,
    local: flags.LocalOption = None,
    connect: flags.ConnectOption = None,
    certs: flags.CertsOption = None,
    party: flags.PartyOption = None,
    out: flags.OutOption = None,
    tune: TuneOption = None,
    ray: flags.RayOption = None,
    json: flags.JsonFlag = False,
) -> None:
    """Be a feature party: connect to the label party of the job and train with it.

    The same command continues an interrupted run; torchrun starts several processes. Example:

    tpsl feature join job.yaml --connect label.example:7443 --certs certs/airport
    """
    given = {"local.connect": connect, "local.certificates": certs, "local.party": party, "local.out": out}
    side = Side.of(Settings.of(changes, given), job, local)
    from tpsl.run.over_network import join as run
    from tpsl.select.joint_search import tune_as_feature

    if tune is not None:
        members = tune_as_feature(*_search(side, tune))
        facts: Facts = {"ensemble": f"{len(members)} networks, which the label party weights", "folder": side.out}
        score = {"score new records": f"tpsl predict {side.out} --records new.csv --connect HOST:7443"}
        content = {"out": str(side.out), "party": side.party, "candidates": members}
        answer(json, content, Report("Searched with the label party", facts, score))
        return
    result = side.run(partial(run, side.job, side.party, side.local, side.out), ray)
    if result is None:
        return
    if side.job.hands_over and (trained := RunFolder(side.out).result()) is not None:
        show_result(side.out, trained, json)
        return
    speed = f", {result.samples_per_second:,.0f} samples/s" if result.steps else ""
    facts = {
        "run": Path(result.run),
        "weights": side.out / side.party / "bottom.safetensors",
        "training": f"{counted(result.steps, 'step')}, {counted(result.epochs, 'epoch')}{speed}",
    }
    steps = {"see it as a page": f"tpsl report {side.out} --for {side.party}"}
    headline = f"Trained on {records_text(result.train_records)} with the label party"
    answer(json, asdict(result), Report(headline, facts, steps))


def _search(side: Side, space: str) -> tuple[JointSearch, Watched]:
    """Return a search with the other side, and what shows each configuration of it as a run."""
    from tpsl.select.joint_search import JointSearch
    from tpsl.select.space import load_space

    configurations = None if space == "auto" else load_space(Path(space))
    insecure = side.local.insecure_loopback
    search = JointSearch.of(side.job, side.party, side.local, side.out, configurations, insecure_loopback=insecure)
    names = [trial.name for trial in search.trials]

    def watched(trial: Trial) -> AbstractContextManager[Watching]:
        if not side.local.logs_json:
            notice(f"configuration {names.index(trial.name) + 1} of {len(names)}: {trial.name}")
        return replace(side, job=trial.job, out=trial.run.path).watched()

    return search, watched


def evaluate(
    run: flags.RunArgument,
    changes: flags.SetOption = None,
    local: flags.LocalOption = None,
    json: flags.JsonFlag = False,
) -> None:
    """Evaluate a finished run, or search, on its test records, and train its local head if the job has one.

    Both use true labels, so the output is for the label party alone. `tpsl label serve` does neither, because a feature
    party sees when it ends. Example: tpsl label evaluate runs/job-label
    """
    from tpsl.model.trained import TUNE
    from tpsl.run.after_training import evaluate_run
    from tpsl.select.after_search import evaluate_search

    here = Settings.of(changes, parts=(LOCAL,)).load_local(local)

    def watched(folder: RunFolder) -> AbstractContextManager[Watching]:
        return bar_and_loggers("evaluating", folder.job(), folder.path, here)

    if (run / TUNE).exists():
        show_tuned(evaluate_search(run, here, watched), run, json)
        return
    with watched(RunFolder(run)) as watching:
        result = evaluate_run(RunFolder(run), here, watching)
    show_result(run, result, json)


@contextmanager
def bar_and_loggers(title: str, job: Job, run: Path, local: Local, *, shown: bool = True) -> Iterator[Watching]:
    """Show a progress bar until the block ends, and tell the loggers; nothing if another process shows the run."""
    if not shown:
        yield Watching()
        return
    early = job.training.patience > 0
    with (
        progress_bar(title, may_end_early=early) as progress,
        run_logger(job, run, LABEL_PARTY, notice, local.loggers) as logger,
    ):
        yield Watching(logger, progress, notice, reason=notice)


def align(
    job: flags.JobArgument,
    changes: flags.SetOption = None,
    local: flags.LocalsOption = None,
    listen: flags.ListenOption = None,
    connect: flags.ConnectOption = None,
    certs: flags.CertsOption = None,
    party: flags.PartyOption = None,
    out: Annotated[Path | None, option("FOLDER", "This party's alignment. Default: alignments/JOB-PARTY.")] = None,
    together: Annotated[bool, flag("--together", "Be all parties in this process, for tries on one machine.")] = False,
    json: flags.JsonFlag = False,
) -> None:
    """Find the records that all parties have in common, without showing the others.

    The job says how, in `data.alignment`. The label party listens, the feature parties connect. The same command
    continues an interrupted alignment. Example:

    tpsl align job.yaml --party label --listen 0.0.0.0:7443 --certs certs/label
    """
    from tpsl.alignment import parties

    given = {"local.listen": listen, "local.connect": connect, "local.certificates": certs, "local.party": party}
    settings = Settings.of(changes, {**given, "local.alignment": out})
    side = None if together else Side.of(settings, job, the_only(local))
    agreed = side.job if side else settings.load_parties(job, local).job
    plan = agreed.data.alignment if isinstance(agreed.data, TableData) else None
    for sentence in parties.warnings(plan) if plan else ():  # where there is none, it is refused where it is used
        warn(sentence)
    if side is None:
        with stoppable(GOES_ON), progress_bar("aligning") as progress:
            found = parties.align_all(agreed, Watching(progress=progress, notice=notice))
        content = {"parties": {name: each.as_dict() for name, each in found.items()}}
        answer(json, content, [part for each in found.values() for part in _aligned(each)])
        return
    agreed = own_data(agreed, side.party, side.local.data, side.local.alignment)
    with side.live() as live:
        watching, insecure = Watching(live, live.progress, live.notice, live.watch), side.local.insecure_loopback
        mine = parties.align(agreed, side.party, side.local, watching=watching, insecure_loopback=insecure)
    answer(json, mine.as_dict(), _aligned(mine))


def _aligned(each: Aligned) -> Report:
    alignment = each.result.alignment
    some_are_known = alignment.mode == "label-only" and alignment.matched is not None
    matched = f", {alignment.matched:,} of them known to the label party" if some_are_known else ""
    left_out = (("without", each.keys.missing), ("with a repeated", each.keys.repeated))
    rows = [f"{counts[name]:,} {what} {name}" for what, counts in left_out for name in counts if counts[name]]
    facts: Facts = {
        "alignment": from_here(each.folder),
        "records": f"{len(alignment):,}{matched}" if alignment.mode != "size" else f"{alignment.matched:,} in common",
        "own rows": ", ".join([f"{alignment.source.rows:,}", *rows]),
        "digest": alignment.digest[:16],
        "traffic": f"{each.result.bytes_sent:,} bytes sent, {each.result.bytes_received:,} received",
    }
    learned = (sentence.partition(": ") for sentence in each.learned)
    return Report("Found the common records", facts | {f"learned by {who}": what for who, _, what in learned})


def certs(
    job: Annotated[Path | None, argument("JOB", "Job file: a certificate for each of its parties.")] = None,
    out: Annotated[Path, option("FOLDER", "Folder for the authority and the parties' folders.")] = Path("certs"),
    party: Annotated[list[str] | None, option("NAME", "A certificate for this party too; may be repeated.")] = None,
    days: Annotated[int, option("NUMBER", "How long the certificates are valid.", min=1, max=3650)] = 365,
    json: flags.JsonFlag = False,
) -> None:
    """Make an authority and one certificate per party; what is there already stays as it is.

    Example: tpsl certs job.yaml
    """
    of_job = [LABEL_PARTY, *load_job(job).data.feature_parties] if job else []
    parties = list(dict.fromkeys([*of_job, *(party or ())]))
    if not parties:
        raise ValueError("certs needs a job file, or a --party to make a certificate for")
    made, authority = party_folders(out, parties, days), out / AUTHORITY
    facts, steps, name = Facts(), {}, job or Path("job.yaml")
    for each in made:
        to = "the label party" if each.party == LABEL_PARTY else each.party
        sent = f"send the folder {each.folder} to {to} over a channel you trust"
        kept = f"{each.folder} was there already and stays as it is"
        facts[each.party] = f"{sent if each.new else kept} (valid until {each.expires:%Y-%m-%d})"
        command, address = "feature join", "--connect HOST:7443"
        if each.party == LABEL_PARTY:
            command, address = "label serve", "--listen 0.0.0.0:7443"
        steps[f"train as {each.party}"] = f"tpsl {command} {name} --certs {each.folder} {address}"
    facts["authority"] = f"keep {authority} offline or delete it: anyone who has it can pose as any party"
    new = [each.party for each in made if each.new]
    headline = f"Made certificates for {', '.join(new)}" if new else "All certificates were there already"
    folders = [each._asdict() | {"folder": str(each.folder), "expires": each.expires.isoformat()} for each in made]
    answer(json, {"authority": str(authority), "parties": folders}, Report(headline, facts, steps))
