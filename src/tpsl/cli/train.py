"""`tpsl train`: run a job in one process, of all parties or, with `--labels`, of the feature party alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import Facts, Report, answer, notice, progress_bar, warn
from tpsl.cli.flags import (
    CertsOption,
    EpochsOption,
    EpsilonOption,
    JsonFlag,
    LocalsOption,
    OutOption,
    RayOption,
    SetOption,
    VaultOption,
    argument,
    complete_source,
    flag,
    option,
)
from tpsl.cli.on_ray import trains_on_ray
from tpsl.cli.party_commands import Side
from tpsl.cli.run_result import show_result
from tpsl.cli.settings import Settings, the_only
from tpsl.cli.termination import stoppable
from tpsl.cli.tune import show_tuned

if TYPE_CHECKING:
    from tpsl.learners.learning import LearnResult
    from tpsl.training.job import Job
    from tpsl.training.observer import Watching
    from tpsl.training.setup import RunSetup
    from tpsl.workers import Workers

OPTIONS_ALONE = {"method": "auto"}
"""The job that options change where there is no job file: a file says itself what crosses, and this one is ours."""
NETWORK, TUNED = "network", "tuned"


def train(
    job: Annotated[Path | None, argument("JOB", "Job file (YAML). Without one, the options make a job.")] = None,
    changes: SetOption = None,
    local: LocalsOption = None,
    data: Annotated[str | None, option("NAME", "Data set, as flights.", autocompletion=complete_source)] = None,
    epsilon: EpsilonOption = None,
    epochs: EpochsOption = None,
    out: OutOption = None,
    vault: VaultOption = None,
    scratch: Annotated[
        bool,
        flag(
            "--scratch",
            "For the owner of both tables, to try things: any ε, also none. The run has a vault apart, which counts in "
            "no total, and nothing of the run may leave.",
        ),
    ] = False,
    labels: Annotated[
        Path | None,
        option(
            "FILE",
            "Be a feature party alone: learn from these noisy labels, which `tpsl vault release --out` wrote (the "
            "Parquet file, or its folder).",
        ),
    ] = None,
    learner: Annotated[
        str,
        option(
            "NAME",
            "With --labels, what learns: 'network' (the job's), 'tuned' (several networks and their ensemble), on the "
            "same noisy labels 'lightgbm', 'xgboost', 'plain_lightgbm', 'logistic', 'committee' (trees and logistic "
            "regression), or 'auto' (the ensemble of all: networks, trees, logistic regression).",
        ),
    ] = NETWORK,
    certs: CertsOption = None,
    ray: RayOption = None,
    json: JsonFlag = False,
) -> None:
    """Train a split network in one process; options override the job file.

    Example: tpsl train job.yaml --out runs/first

    With --labels a feature party trains without the label party. The run has both halves of the network, and equals
    split training with the same noisy labels. There are no true labels then: noisy ones of held-out records choose the
    best epoch (training.validation). With --certs the authority in that folder must have made the certificate of
    whoever signed the labels. Example: tpsl train job.yaml --labels for-airport --certs certs/airport
    """
    flags = {
        "data.source": data,
        "privacy.epsilon": epsilon,
        "training.epochs": epochs,
        "local.out": out,
        "local.vault": vault,
        "local.certificates": certs,
    }
    settings = Settings.of(changes, flags)
    if labels is not None:
        if job is None:
            raise typer.BadParameter("--labels needs the job file that the label party has too")
        _train_on_labels(Side.of(settings, job, the_only(local)), labels, learner, ray, json)
        return
    if learner != NETWORK:
        raise typer.BadParameter("--learner is for --labels")
    if job is None and Path("job.yaml").exists():
        notice("no job file was named, so job.yaml in this folder is not used")
    with progress_bar("starting"):  # it takes seconds
        from tpsl.training.one_process import ALL_STEPS, train_together
        from tpsl.training.run_folder import RunFolder
        from tpsl.training.setup import RunSetup
        from tpsl.training.transcript import RECORDED_STEPS
        from tpsl.workers import Workers

    parties = settings.load_parties(job or OPTIONS_ALONE, local)
    agreed, at_label = parties.job, parties.label
    workers = Workers.of_this_process(at_label.device)
    name = f"{agreed.data.source}-{agreed.privacy.mechanism}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = at_label.out or Path("runs") / workers.broadcast(name)
    if trains_on_ray(ray, run, at_label.device):
        return
    with (
        stoppable(f"the same command with --out {run} goes on where it stopped"),
        watched_by_first(workers, agreed, run, at_label.loggers) as watching,
    ):
        device = workers.device(at_label.device)
        # Several workers cannot record, and a GPU takes recorded steps one by one.
        by_default = 0 if workers.are_several or device.type == "cuda" else RECORDED_STEPS
        setup = RunSetup(
            agreed,
            RunFolder(run),
            parties.own,
            device,
            ALL_STEPS if at_label.record_transcript else by_default,
            watching,
            start=at_label.starting_point(),
            workers=workers,
        )
        result = train_together(setup, at_label.vault_choice(scratch=scratch))
    if workers.is_first:
        show_result(run, result, json)


@contextmanager
def watched_by_first(workers: Workers, job: Job, run: Path, log: list[str] | None) -> Iterator[Watching]:
    """Show a progress bar until the block ends, and tell the loggers; of several workers the first does."""
    from tpsl.net.peers import LABEL_PARTY
    from tpsl.training.loggers import run_logger
    from tpsl.training.observer import Watching

    if not workers.is_first:
        yield Watching()
        return
    early = job.training.patience > 0
    with (
        progress_bar("training", may_end_early=early) as progress,
        run_logger(job, run, LABEL_PARTY, notice, log) as logger,
    ):
        yield Watching(logger, progress, notice, reason=notice)


def _train_on_labels(side: Side, labels: Path, learner: str, ray: int | None, json: bool) -> None:
    """Train at the feature party alone, on noisy labels that were handed over."""
    _require_known(learner)
    if trains_on_ray(ray, side.out, side.local.device):
        return

    from tpsl.net.certificates import AUTHORITY_FILE
    from tpsl.training.alone import parts_of_both
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.setup import RunSetup

    workers, local = side.workers, side.local
    if workers.are_several and learner != NETWORK:
        raise ValueError(f"several workers train the network together; {learner} is for one")
    ca = None if local.certificates is None else local.certificates / AUTHORITY_FILE
    if ca is None:
        warn("who has made these labels is not checked: name your certificate folder with --certs")
    with (
        stoppable("the same command goes on where it stopped"),
        watched_by_first(workers, side.job, side.out, local.loggers) as watching,
    ):
        setup = RunSetup(
            side.job,
            RunFolder(side.out),
            parts_of_both(side.party, local.own_parts()),
            workers.device(local.device),
            watching=watching,
            start=local.starting_point(),
            workers=workers,
        )
        show = _learned(learner, setup, side, labels, ca)
    if workers.is_first:
        show(json)


def _learned(learner: str, setup: RunSetup, side: Side, labels: Path, ca: Path | None) -> Callable[[bool], None]:
    """Have a learner learn; return what shows the result, as JSON if it is told so."""
    from tpsl.handover.learning import learn as learn_network
    from tpsl.learners.learning import AUTO, learn_with, require_no_learner
    from tpsl.tuning.search_alone import learn_auto, tune_alone

    given = setup, side.party, side.local, labels, ca
    if learner in (NETWORK, TUNED):
        require_no_learner(setup.run, "choose another --out")
    if learner == NETWORK:
        return partial(show_result, side.out, learn_network(*given))
    if learner == TUNED:
        return partial(show_tuned, tune_alone(*given), side.out)
    result = learn_auto(*given) if learner == AUTO else learn_with(learner, *given)
    return partial(_show_learned, result, side.party)


def _require_known(learner: str) -> None:
    from tpsl.learners.known import LEARNERS
    from tpsl.learners.learning import AUTO
    from tpsl.registry import UnknownName

    known = (*LEARNERS, NETWORK, TUNED, AUTO)
    if learner not in known:
        raise UnknownName(f"unknown learner {learner!r}; known are {', '.join(known)}")


def _show_learned(result: LearnResult, party: str, json: bool) -> None:
    from tpsl.report.words import learned_texts, spent_text

    guarantee = spent_text(result.epsilon, result.delta) + ("" if result.private else "  (NOT PRIVATE)")
    facts: Facts = {"run": Path(result.out), "guarantee": guarantee, **learned_texts(result)}
    steps = {"score new records": f"tpsl predict {result.out} --records {party}=new.csv --out scores.csv"}
    answer(json, result.as_dict(), Report(f"Learned from {result.records:,} noisy labels", facts, steps))
