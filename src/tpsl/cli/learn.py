"""`tpsl learn`: train a job at the feature party alone, on noisy labels that were handed over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import Facts, JsonFlag, Report, answer, notice, warn
from tpsl.cli.on_ray import trains_on_ray, with_ray
from tpsl.cli.run_result import show_result
from tpsl.cli.settings import JobArgument, LocalOption, LogOption, settings_command
from tpsl.cli.termination import stoppable
from tpsl.cli.train import watched_by_first
from tpsl.cli.tune import show_tuned
from tpsl.cli.two_parties import Side
from tpsl.cli.verbosity import reasons, with_verbose

if TYPE_CHECKING:
    from tpsl.learners.learning import LearnResult
    from tpsl.training.setup import RunSetup

NETWORK, TUNED = "network", "tuned"
COMMAND = with_ray(
    with_verbose(
        settings_command(
            mechanism="privacy.mechanism",
            epsilon="privacy.epsilon",
            epochs="training.epochs",
            seed="training.seed",
            party="local.party",
            certs="local.certificates",
            out="local.out",
            threads="local.threads",
        )
    )
)


def learn(
    context: typer.Context,
    job: JobArgument,
    labels: Annotated[Path, typer.Option(help="What `tpsl vault hand-over` wrote: the Parquet file, or its folder.")],
    learner: Annotated[
        str,
        typer.Option(
            help="What learns: 'network' (the job's), 'tuned' (several networks and their committee), on the same "
            "noisy labels 'lightgbm', 'xgboost', 'plain_lightgbm', 'logistic', 'committee' (trees and logistic "
            "regression), or 'auto' (the committee of all: networks, trees, logistic regression)."
        ),
    ] = NETWORK,
    local: LocalOption = None,
    log: LogOption = None,
    json: JsonFlag = False,
) -> None:
    """Train a network on noisy labels that were handed over, without the label party; options override the job file.

    The run has both halves of the network, and is what split training with the same noisy labels ends with. There are
    no true labels here: noisy ones of held-out records judge (training.validation). With --certs the authority in that
    folder must have made the certificate of who has signed the labels. Example:

    tpsl learn job.yaml --labels for-airport --certs certs/airport
    """
    _require_known(learner)
    side = Side.of(context, job, local)
    if trains_on_ray(context, side.out, side.local.device):
        return

    from tpsl.training.alone import parts_of_both
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.setup import RunSetup
    from tpsl.transport.credentials import AUTHORITY_FILE
    from tpsl.workers import Workers

    workers = Workers.of_this_process(side.local.device)
    if workers.are_several and learner != NETWORK:
        raise ValueError(f"several workers train the network together; {learner} is for one")
    certs = side.local.certificates
    ca = None if certs is None else certs / AUTHORITY_FILE
    if ca is None:
        warn("who has made these labels is not checked: name your certificate folder with --certs")
    with (
        stoppable("the same command goes on where it stopped"),
        watched_by_first(workers, side.job, side.out, log, reasons(context, notice)) as watching,
    ):
        own, device = parts_of_both(side.party, side.local.own_parts()), workers.device(side.local.device)
        start, run_folder = side.local.starting_point(), RunFolder(side.out)
        setup = RunSetup(side.job, run_folder, own, device, watching=watching, start=start, workers=workers)
        show = _learned(learner, setup, side, labels, ca)
    if workers.is_first:
        show(json)


def _learned(learner: str, setup: RunSetup, side: Side, labels: Path, ca: Path | None) -> Callable[[bool], None]:
    """Have a learner learn; return what shows the result, as JSON if it is told so."""
    from tpsl.handover.learning import learn as learn_network
    from tpsl.learners.learning import AUTO, learn_with, require_no_learner
    from tpsl.tuning.alone import learn_auto, tune_alone

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
