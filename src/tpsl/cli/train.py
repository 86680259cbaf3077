"""`tpsl train`: run a job in one process."""

from __future__ import annotations

import math
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, progress_bar, say, warn
from tpsl.cli.data_options import DataName
from tpsl.cli.log_options import LogOption
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
from tpsl.cli.release_options import (
    AllowLookalikesFlag,
    ComposeFlag,
    MaxDeltaOption,
    MaxEpsilonOption,
    NotPrivateFlag,
    VaultOption,
    release_policy,
)
from tpsl.cli.termination import stoppable

if TYPE_CHECKING:
    from tpsl.training import TrainResult


class OptimizerName(StrEnum):
    """The optimiser of both halves."""

    sgd = "sgd"
    adam = "adam"
    adagrad = "adagrad"


class HeadName(StrEnum):
    """Which heads the label party trains."""

    private = "private"
    local = "local"


class GradientsName(StrEnum):
    """What the feature parties get back."""

    perturbed = "perturbed"
    none = "none"


class PretrainName(StrEnum):
    """How the feature parties' halves learn without labels."""

    masked = "masked"
    contrastive = "contrastive"


def train(
    job: Annotated[
        Path | None, typer.Argument(help="Job file (YAML). Without one, the options below make a job.")
    ] = None,
    data: Annotated[DataName | None, typer.Option(help="Data set.")] = None,
    path: Annotated[Path | None, typer.Option(help="criteo, avazu: Kaggle's file.")] = None,
    rows: Annotated[int | None, typer.Option(help="Use only so many records (a quick try).")] = None,
    layout: Annotated[
        str | None, typer.Option(help="flights: 'all' features at the feature party, or 'natural'.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="flights: 'late' (two classes) or 'delay5' (five).")] = None,
    split: Annotated[str | None, typer.Option(help="Test set: 'random' or 'chronological'.")] = None,
    mechanism: MechanismOption = None,
    epsilon: EpsilonOption = None,
    sigma: SigmaOption = None,
    delta: DeltaOption = None,
    draws: DrawsOption = None,
    gradients: Annotated[
        GradientsName | None,
        typer.Option(help="'none': the feature parties get nothing back, ε = 0; with --head local."),
    ] = None,
    estimator: EstimatorOption = None,
    epochs: Annotated[int | None, typer.Option(help="How often each record is used.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Records in a step.")] = None,
    optimizer: Annotated[OptimizerName | None, typer.Option(help="Optimiser of both halves.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of both halves.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of both halves.")] = None,
    validation: Annotated[
        float | None, typer.Option(help="Share of the training records whose noisy labels judge. Costs no budget.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without gain on the noisy hold-out; keep the best.")
    ] = None,
    averaging: Annotated[
        float | None, typer.Option(help="Decay of an average of the weights that predicts, as 0.995. Costs no budget.")
    ] = None,
    members: Annotated[
        int | None, typer.Option(help="Networks trained side by side; their mean predicts. Costs no budget.")
    ] = None,
    wide: Annotated[
        bool | None,
        typer.Option("--wide/--no-wide", help="First fit an additive model of each party's fields. Costs no budget."),
    ] = None,
    head: Annotated[
        HeadName | None, typer.Option(help="'local': also a head trained on true labels, which never leaves.")
    ] = None,
    pretrain: Annotated[
        PretrainName | None, typer.Option(help="Train the feature parties' halves without labels first.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes batches and initial weights, never the noise.")] = None,
    insecure_seeded_noise: Annotated[
        bool, typer.Option("--insecure-seeded-noise", help="The seed fixes the noise too. The run is NOT private.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Run folder. An interrupted run in it is resumed.")] = None,
    vault: VaultOption = None,
    max_epsilon: MaxEpsilonOption = None,
    max_delta: MaxDeltaOption = None,
    not_private: NotPrivateFlag = False,
    compose: ComposeFlag = False,
    allow_lookalikes: AllowLookalikesFlag = False,
    record_transcript: Annotated[
        bool, typer.Option("--record-transcript", help="Keep all that crossed the border, for attacks and audits.")
    ] = False,
    log: LogOption = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")] = None,
    json: JsonFlag = False,
) -> None:
    """Train a split network; options override the job file.

    Example: tpsl train --data flights --mechanism laplace --epsilon 1 --estimator linear --epochs 1
    """
    import torch

    from tpsl import training
    from tpsl.training.loggers import run_logger
    from tpsl.transport.peers import LABEL_PARTY
    from tpsl.vault import default_place

    if threads is not None:
        torch.set_num_threads(threads)
    updates = given(name=optimizer, learning_rate=learning_rate, weight_decay=weight_decay)
    overrides: dict[str, dict[str, Any]] = {
        "data": given(source=data, path=str(path) if path else None, rows=rows, layout=layout, task=task, split=split),
        "privacy": {
            **privacy_fields(mechanism, epsilon, sigma, delta),
            **given(estimator=estimator, draws=draws, gradients=gradients),
        },
        "model": given(members=members, wide=wide),
        "training": {
            **given(epochs=epochs, batch_size=batch_size, averaging=averaging, seed=seed, head=head),
            **given(validation=validation, patience=patience),
            **({"pretrain": {"method": str(pretrain)}} if pretrain else {}),
            **({"feature_optimizer": updates, "label_optimizer": updates} if updates else {}),
        },
    }
    agreed = training.load_job(job, overrides) if job else training.make_job({}, overrides, "options")
    if insecure_seeded_noise:
        seeded = {"privacy": {"noise_seed": agreed.training.seed}}
        agreed = training.make_job(agreed.model_dump(mode="json"), seeded, "options")
    if agreed.privacy.noise_seed is not None:
        warn("the noise is seeded: this run is NOT PRIVATE")
    run = out or Path("runs") / f"{agreed.data.source}-{agreed.privacy.mechanism}-{time.strftime('%Y%m%d-%H%M%S')}"
    with (
        stoppable(f"the same command with --out {run} goes on where it stopped"),
        progress_bar("training") as progress,
        run_logger(agreed, run, LABEL_PARTY, notice, log) as logger,
    ):
        result = training.train(
            agreed,
            run,
            vault=vault,
            place=default_place(),
            policy=release_policy(max_epsilon, not_private, compose, max_delta, allow_lookalikes),
            record_steps=training.ALL_STEPS if record_transcript else 0,
            progress=progress,
            notice=notice,
            observer=logger,
        )
    show_result(result, json)


def show_result(result: TrainResult, json: bool) -> None:
    """Print the label party's result, with that of its local head if there is one."""
    from tpsl.report.ledgers import result_now
    from tpsl.training.result import NOTHING_RELEASED
    from tpsl.training.run_folder import RunFolder

    run = RunFolder(Path(result.run))
    local, result = run.local_head(), result_now(run, result)
    if json:
        print_json({**result.as_dict(), **({"local_head": local} if local else {})})
        return

    rows = {
        "run": result.run,
        **(_nothing_released() if result.mechanism == NOTHING_RELEASED else _private_head(result)),
        **({"local head AUC": f"{local['test_auc']:.4f}  (NOT PRIVATE, stays with the label party)"} if local else {}),
        "speed": f"{result.samples_per_second:,.0f} samples/s, {result.seconds:.1f} s in all",
    }
    for name, value in rows.items():
        say(f"{name:<18} {value}")


def _nothing_released() -> dict[str, str]:
    return {"guarantee": "ε = 0: nothing was released, the feature parties got nothing back"}


def _test_auc(result: TrainResult) -> str:
    if math.isnan(result.test_auc):
        return "–  (it needs test records of two classes)"
    return f"{result.test_auc:.4f}  [{result.test_auc_low:.4f}, {result.test_auc_high:.4f}]"


def _private_head(result: TrainResult) -> dict[str, str]:
    from tpsl.report.words import LARGE_DELTA_TEXT, guarantee_text
    from tpsl.vault.budget import is_large_delta

    large = f". {LARGE_DELTA_TEXT}" if is_large_delta(result.total_delta, result.train_records) else ""
    judged = f"{result.validation_auc:.4f}  (from noisy labels)"
    return {
        "mechanism": f"{result.mechanism}, estimator {result.estimator}, {result.draws} draw(s)",
        "guarantee": guarantee_text(result) + large,
        **({"epoch kept": f"{result.kept_epoch} of {result.epochs}"} if result.kept_epoch != result.epochs else {}),
        **({"hold-out AUC": judged} if math.isfinite(result.validation_auc) else {}),
        "test AUC": _test_auc(result),
        "test log loss": f"{result.test_log_loss:.4f}",
        "calibration error": f"{result.test_calibration_error:.4f}",
    }
