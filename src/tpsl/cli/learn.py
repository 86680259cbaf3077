"""`tpsl learn`: train a job at the feature party alone, on noisy labels that were handed over."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tpsl.cli.console import JsonFlag, answer, notice, progress_bar, warn
from tpsl.cli.settings import JobArgument, LocalOption, LogOption, settings_command
from tpsl.cli.termination import stoppable
from tpsl.cli.train import show_result
from tpsl.cli.tune import show_tuned
from tpsl.cli.two_parties import Side

if TYPE_CHECKING:
    from tpsl.learners.learned_run import LearnedResult
    from tpsl.training.result import TrainResult
    from tpsl.tuning.candidates import TuneResult

_NETWORK, _TUNED = "network", "tuned"
COMMAND = settings_command(
    mechanism="privacy.mechanism",
    epsilon="privacy.epsilon",
    epochs="training.epochs",
    seed="training.seed",
    party="local.party",
    out="local.out",
)


def learn(
    context: typer.Context,
    job: JobArgument,
    labels: Annotated[Path, typer.Option(help="What `tpsl vault hand-over` wrote: the Parquet file, or its folder.")],
    ca: Annotated[
        Path | None, typer.Option(help="The authority that both sides trust (ca.pem): it must vouch for the signer.")
    ] = None,
    learner: Annotated[
        str,
        typer.Option(
            help="'network'; 'tuned': several networks and their committee; 'auto': a committee of trees; "
            "lightgbm, xgboost, logistic, or a registered name."
        ),
    ] = _NETWORK,
    local: LocalOption = None,
    log: LogOption = None,
    json: JsonFlag = False,
) -> None:
    """Train a network on noisy labels that were handed over, without the label party; options override the job file.

    The run has both halves of the network, and is what split training with the same noisy labels ends with; or it has
    the model of another learner. There are no true labels here: noisy ones of held-out records judge
    (training.validation). Example:

    tpsl learn job.yaml --labels for-airport --ca certs/airport/ca.pem
    """
    side = Side.of(context, job, local)
    if ca is None:
        warn("who has made these labels is not checked: name the authority of the label party's certificate with --ca")
    handed = Handed(labels, ca)
    if learner == _NETWORK:
        show_result(_trained(side, handed, log), json)
    elif learner == _TUNED:
        show_tuned(_searched(side, handed), side.out, json)
    else:
        _show(_fitted(side, handed, learner), json)


class Handed(NamedTuple):
    """What was handed over, and who must vouch for it."""

    labels: Path
    authority: Path | None


def _trained(side: Side, handed: Handed, log: list[str] | None) -> TrainResult:
    """Train the job's network."""
    import torch

    from tpsl.handover.learning import learn as run
    from tpsl.training.alone import parts_of_both
    from tpsl.training.loggers import run_logger
    from tpsl.training.observer import Watching
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.setup import RunSetup
    from tpsl.transport.peers import LABEL_PARTY

    with (
        stoppable("the same command goes on where it stopped"),
        progress_bar("training") as progress,
        run_logger(side.job, side.out, LABEL_PARTY, notice, log) as logger,
    ):
        own, device = parts_of_both(side.party, side.local.own_parts()), torch.device(side.local.device)
        watching, start = Watching(logger, progress, notice), side.local.starting_point()
        setup = RunSetup(side.job, RunFolder(side.out), own, device, watching=watching, start=start)
        return run(setup, side.party, side.local, *handed)


def _searched(side: Side, handed: Handed) -> TuneResult:
    """Train the space of `tpsl tune`, of which the noisy labels of held-out records choose."""
    import torch

    from tpsl.data.dataset import Dataset, class_names
    from tpsl.handover.learning import labels_for, load_side
    from tpsl.training.alone import parts_of_both, require_alone
    from tpsl.training.observer import Watching
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.setup import RunSetup
    from tpsl.tuning.search import tune

    require_alone(side.job, side.local.starting_point())
    with stoppable("the same command goes on where it stopped"), progress_bar("tuning") as progress:
        own, watching = parts_of_both(side.party, side.local.own_parts()), Watching(progress=progress, notice=notice)
        setup = RunSetup(side.job, RunFolder(side.out), own, torch.device(side.local.device), watching=watching)
        records = load_side(setup, side.party, side.local)
        data = Dataset.of_one(records, class_names(side.job.data))
        return tune(setup, vault=labels_for(side.job, records, *handed), data=data)


def _fitted(side: Side, handed: Handed, learner: str) -> LearnedResult:
    """Fit another learner than the network."""
    from tpsl.learners.learned_run import learn_with
    from tpsl.training.observer import Watching
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.setup import RunSetup

    with stoppable("the same command begins again"), progress_bar("learning") as progress:
        own, watching = {side.party: side.local.own_parts()}, Watching(progress=progress, notice=notice)
        setup = RunSetup(side.job, RunFolder(side.out), own, watching=watching, start=side.local.starting_point())
        return learn_with(learner, setup, side.party, side.local, *handed)


def _show(result: LearnedResult, json: bool) -> None:
    from tpsl.report.words import guarantee_text

    judged = result.validation
    rows = {
        "run": result.run,
        "learner": f"{result.learner} ({result.setting})",
        "mechanism": result.mechanism,
        "guarantee": guarantee_text(result),
        "hold-out log loss": f"{judged.validation_loss:.4f} ± {judged.validation_loss_se:.4f}  (from noisy labels)",
        **({"hold-out AUC": f"{judged.validation_auc:.4f}"} if math.isfinite(judged.validation_auc) else {}),
    }
    answer(json, result.as_dict(), (f"{name:<18} {value}" for name, value in rows.items()))
