"""`tpsl label serve`, `tpsl feature join` and `tpsl label evaluate`: one party of a job, or of a search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import Facts, Report, answer, notice, progress_bar
from tpsl.cli.flags import (
    CertsOption,
    ConnectOption,
    JobArgument,
    JsonFlag,
    ListenOption,
    LocalOption,
    OutOption,
    PartyOption,
    RayOption,
    RunArgument,
    SetOption,
    VaultOption,
    option,
)
from tpsl.cli.on_ray import trains_on_ray
from tpsl.cli.run_result import show_result
from tpsl.cli.settings import LOCAL, Settings
from tpsl.cli.termination import stoppable
from tpsl.cli.tune import show_tuned

if TYPE_CHECKING:
    from tpsl.training.job import Job
    from tpsl.training.local import Local
    from tpsl.training.observer import Watching
    from tpsl.training.result import FeatureResult
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.shared_evaluation import SharedEvaluation
    from tpsl.tuning.candidates import Trial
    from tpsl.tuning.joint_search import JointSearch
    from tpsl.vault import Spent
    from tpsl.workers import Workers


DEFAULT_SPACE = "auto"
TuneOption = Annotated[
    str | None,
    option(
        "FILE",
        "Search together, instead of one run: all sides name the same YAML list of changes to the job to try, or "
        f"'{DEFAULT_SPACE}' for what suits the classes and the networks. Noisy labels choose, as in `tpsl tune`.",
    ),
]


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
        from tpsl.training.local import party_of

        job, local = settings.load_job(job_file), settings.load_local(local_file)
        me = party_of(job, local, party or local.party)
        return cls(job, me, local, local.out or Path("runs") / f"{job_file.stem}-{me}")

    @property
    def peers(self) -> list[str]:
        """The parties that this side talks with."""
        from tpsl.data.dataset import feature_party_names
        from tpsl.net.peers import LABEL_PARTY

        return list(feature_party_names(self.job.data)) if self.party == LABEL_PARTY else [LABEL_PARTY]

    @property
    def workers(self) -> Workers:
        """The workers of this side. The first one shows how the side runs and what comes out."""
        from tpsl.workers import Workers

        return Workers.of_this_process(self.local.device)

    @property
    def record_steps(self) -> int:
        """How many steps of a run over the network are recorded."""
        from tpsl.training.one_process import ALL_STEPS

        return ALL_STEPS if self.local.record_transcript else 0

    def trains_on_ray(self, workers: int | None) -> bool:
        """Run the command in workers on Ray if it was told to."""
        return trains_on_ray(workers, self.out, self.local.device, log_json=self.local.logs_json)

    @contextmanager
    def watched(self) -> Iterator[Watching]:
        """Show how this side runs until the block ends, and tell the loggers.

        Of several workers the first shows it and tells the loggers; the others show what ends them.
        """
        from tpsl.cli.live import Live
        from tpsl.net.peers import LABEL_PARTY
        from tpsl.training.loggers import run_logger
        from tpsl.training.observer import Watching

        workers, others = self.workers, "feature parties wait" if self.party == LABEL_PARTY else "label party waits"
        log_json = self.local.logs_json
        with (
            stoppable(
                f"the same command goes on where it stopped; the {others} for it",
                log_json=log_json or not workers.is_first,
            ),
            Live(
                self.party,
                peers=self.peers,
                epochs=self.job.training.epochs,
                log_json=log_json,
                metrics=self.local.metrics_address(workers),
                only_errors=not workers.is_first,
            ) as live,
            run_logger(self.job, self.out, self.party, live.notice, self.local.loggers, {"display": live})
            if workers.is_first
            else nullcontext(live) as observer,
        ):
            live.state.may_end_early = self.job.training.patience > 0
            yield Watching(observer, live.progress, live.notice, live.watch, live.notice)


def serve(
    job: JobArgument,
    changes: SetOption = None,
    local: LocalOption = None,
    listen: ListenOption = None,
    certs: CertsOption = None,
    out: OutOption = None,
    vault: VaultOption = None,
    tune: TuneOption = None,
    ray: RayOption = None,
    json: JsonFlag = False,
) -> None:
    """Be the label party: wait for the feature parties of the job and train with them.

    A job that asks for more than you permit is refused before the port is opened. An interrupted run continues when the
    same command is given again. The command ends when training ends: `tpsl label evaluate` computes test metrics and
    the local head, whose time would tell of labels. Example:

    tpsl label serve job.yaml --listen 0.0.0.0:7443 --certs certs/label

    Several processes train together if torchrun starts them: torchrun --nproc-per-node 2 -m -- tpsl label serve …
    """
    flags = {"local.listen": listen, "local.certificates": certs, "local.out": out, "local.vault": vault}
    side = Side.of(Settings.of(changes, flags), job, local, "label")
    if tune is not None:
        _tune_as_label(side, tune, json)
        return
    if side.trains_on_ray(ray):
        return

    from tpsl.training.over_network import serve as run

    with side.watched() as watching:
        result = run(
            side.job,
            side.local,
            side.out,
            watching=watching,
            record_steps=side.record_steps,
            insecure_loopback=side.local.insecure_loopback,
        )
    if side.workers.is_first:
        show_result(side.out, result, json, evaluated=False)


def join(
    job: JobArgument,
    changes: SetOption = None,
    local: LocalOption = None,
    connect: ConnectOption = None,
    certs: CertsOption = None,
    party: PartyOption = None,
    out: OutOption = None,
    tune: TuneOption = None,
    ray: RayOption = None,
    json: JsonFlag = False,
) -> None:
    """Be a feature party: connect to the label party of the job and train with it.

    An interrupted run continues when the same command is given again. Example:

    tpsl feature join job.yaml --connect label.example:7443 --certs certs/airport

    Several processes train together if torchrun starts them: torchrun --nproc-per-node 2 -m -- tpsl feature join …
    """
    flags = {"local.connect": connect, "local.certificates": certs, "local.party": party, "local.out": out}
    side = Side.of(Settings.of(changes, flags), job, local)
    if tune is not None:
        _tune_as_feature(side, tune, json)
        return
    if side.trains_on_ray(ray):
        return

    from tpsl.training.over_network import join as run
    from tpsl.training.run_folder import RunFolder

    with side.watched() as watching:
        result = run(
            side.job,
            side.party,
            side.local,
            side.out,
            watching=watching,
            record_steps=side.record_steps,
            insecure_loopback=side.local.insecure_loopback,
        )
    if not side.workers.is_first:
        return
    if side.job.hands_over and (trained := RunFolder(side.out).result()) is not None:
        show_result(side.out, trained, json)
        return
    answer(json, asdict(result), _joined(side, result))


def _joined(side: Side, result: FeatureResult) -> Report:
    from tpsl.report.words import counted, records_text

    speed = f", {result.samples_per_second:,.0f} samples/s" if result.steps else ""
    trained = f"{counted(result.steps, 'step')}, {counted(result.epochs, 'epoch')}{speed}"
    return Report(
        f"Trained on {records_text(result.train_records)} with the label party",
        {"run": Path(result.run), "weights": side.out / side.party / "bottom.safetensors", "training": trained},
        {"see it as a page": f"tpsl report {side.out} --for {side.party}"},
    )


def _tune_as_label(side: Side, space: str, json: bool) -> None:
    from tpsl.tuning.joint_search import tune_as_label

    search = _search(side, space)
    found = tune_as_label(search, _Watched(side, search))
    show_tuned(found, side.out, json, {"test metrics": f"tpsl label evaluate {side.out}"})


def _tune_as_feature(side: Side, space: str, json: bool) -> None:
    from tpsl.tuning.joint_search import tune_as_feature

    search = _search(side, space)
    members = tune_as_feature(search, _Watched(side, search))
    content: dict[str, Any] = {"out": str(side.out), "party": side.party, "candidates": members}
    facts: Facts = {"ensemble": f"{len(members)} networks, which the label party weights", "folder": side.out}
    steps = {"score new records": f"tpsl predict {side.out} --records new.csv --connect HOST:7443"}
    answer(json, content, Report("Searched with the label party", facts, steps))


def _search(side: Side, space: str) -> JointSearch:
    from tpsl.tuning.joint_search import JointSearch
    from tpsl.tuning.space import load_space

    configurations = None if space == DEFAULT_SPACE else load_space(Path(space))
    insecure = side.local.insecure_loopback
    return JointSearch.of(side.job, side.party, side.local, side.out, configurations, insecure_loopback=insecure)


class _Watched:
    """Shows each configuration of a search as a run."""

    def __init__(self, side: Side, search: JointSearch) -> None:
        self._side = side
        self._names = [trial.name for trial in search.trials]

    def __call__(self, trial: Trial) -> AbstractContextManager[Watching]:
        if not self._side.local.logs_json:
            notice(f"configuration {self._names.index(trial.name) + 1} of {len(self._names)}: {trial.name}")
        return replace(self._side, job=trial.job, out=trial.run.path).watched()


def evaluate(
    run: RunArgument,
    changes: SetOption = None,
    local: LocalOption = None,
    epsilon: Annotated[
        float | None,
        option("NUMBER", "Make metrics that feature parties may see, from noisy labels: the ε that each may cost."),
    ] = None,
    scores: Annotated[
        Path | None,
        option(
            "FILE",
            "With --epsilon: scores of new records (tpsl predict) whose labels are in the vault, not the test records.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option("FILE", "With --epsilon: the file to hand over. Default: shared_metrics.json in the run folder."),
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

    with progress_bar("evaluating") as progress, run_logger(run.job(), run.path, LABEL_PARTY, notice, log) as logger:
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
