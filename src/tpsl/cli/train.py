"""`tpsl train`: run a job in one process."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, answer, notice, progress_bar
from tpsl.cli.settings import (
    JOB_FLAGS,
    RELEASE_FLAGS,
    START_FLAGS,
    LocalsOption,
    LogOption,
    RecordTranscriptFlag,
    Settings,
    settings_command,
)
from tpsl.cli.termination import stoppable

if TYPE_CHECKING:
    from tpsl.training.job import Job
    from tpsl.training.observer import Watching
    from tpsl.training.origin import Origin
    from tpsl.training.result import TrainResult
    from tpsl.workers import Workers

COMMAND = settings_command(
    **JOB_FLAGS, **START_FLAGS, seed="training.seed", out="local.out", device="local.device", **RELEASE_FLAGS
)

OPTIONS_ALONE = {"method": "auto"}
"""The job that options change where there is no job file: a file says itself what crosses, and this one is ours."""


def train(
    context: typer.Context,
    job: Annotated[Path | None, typer.Argument(help="Job file (YAML). Without one, the options make a job.")] = None,
    local: LocalsOption = None,
    record_transcript: RecordTranscriptFlag = False,
    log: LogOption = None,
    json: JsonFlag = False,
) -> None:
    """Train a split network; options override the job file.

    Example: tpsl train --data flights --mechanism laplace --epsilon 1 --epochs 1
    """
    from tpsl.training.one_process import ALL_STEPS, train_together
    from tpsl.training.run_folder import RunFolder
    from tpsl.training.setup import RunSetup
    from tpsl.workers import Workers

    parties = Settings.of(context).load_parties(job or OPTIONS_ALONE, local)
    agreed, at_label = parties.job, parties.label
    workers = Workers.of_this_process(at_label.device)
    name = f"{agreed.data.source}-{agreed.privacy.mechanism}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = at_label.out or Path("runs") / workers.from_first(name)
    with (
        stoppable(f"the same command with --out {run} goes on where it stopped"),
        watched_by_first(workers, agreed, run, log) as watching,
    ):
        device, record_steps = workers.device(at_label.device), ALL_STEPS if record_transcript else 0
        setup = RunSetup(
            agreed,
            RunFolder(run),
            parties.own,
            device,
            record_steps,
            watching,
            start=at_label.starting_point(),
            workers=workers,
            shards_tables=at_label.shards_tables,
        )
        result = train_together(setup, at_label.vault_choice())
    if workers.is_first:
        show_result(result, json)


@contextmanager
def watched_by_first(workers: Workers, job: Job, run: Path, log: list[str] | None) -> Iterator[Watching]:
    """Show a progress bar until the block ends, and tell the loggers; of several workers the first does."""
    from tpsl.training.loggers import run_logger
    from tpsl.training.observer import Watching
    from tpsl.transport.peers import LABEL_PARTY

    if not workers.is_first:
        yield Watching()
        return
    with progress_bar("training") as progress, run_logger(job, run, LABEL_PARTY, notice, log) as logger:
        yield Watching(logger, progress, notice)


def show_result(result: TrainResult, json: bool) -> None:
    """Print the label party's result, with that of its local head if there is one."""
    from tpsl.report.ledgers import result_now
    from tpsl.training.result import NOTHING_RELEASED
    from tpsl.training.run_folder import RunFolder
    from tpsl.transport.peers import LABEL_PARTY

    run = RunFolder(Path(result.run))
    local, result = run.local_head(), result_now(run, result)
    nothing = {"guarantee": "ε = 0: nothing was released, the feature parties got nothing back"}
    origin = run.origin(LABEL_PARTY)
    samples = f"{result.samples_per_second:,.0f} samples/s, " if result.steps else ""
    rows = {
        "run": result.run,
        **({"starts from": _starts_from(origin)} if origin else {}),
        **(nothing if result.mechanism == NOTHING_RELEASED else _private_head(result)),
        **({"local head AUC": f"{local['test_auc']:.4f}  (NOT PRIVATE, stays with the label party)"} if local else {}),
        "speed": f"{samples}{result.seconds:.1f} s in all",
    }
    content = {**result.as_dict(), **({"local_head": local} if local else {})}
    if origin:
        content["origin"] = origin.as_dict()
    answer(json, content, (f"{name:<18} {value}" for name, value in rows.items()))


def _starts_from(origin: Origin) -> str:
    from tpsl.report.words import spent_text

    spent = f", {spent_text(origin.ledgered.epsilon, 0.0)} in all" if origin.ledgered else ""
    return f"{origin.run} ({origin.train_records:,} records{spent}; their labels are in these weights too)"


def _tested(result: TrainResult) -> dict[str, str]:
    """What true labels of test records say; a feature party that trains alone has none."""
    if math.isnan(result.test_log_loss):
        if not result.epochs:
            return {"handed over": f"{result.train_records:,} noisy labels, on which the feature party trains alone"}
        return {"test AUC": "–  (no true label of a test record is known here)"}
    area = f"{result.test_auc:.4f}  [{result.test_auc_low:.4f}, {result.test_auc_high:.4f}]"
    return {
        "test AUC": "–  (it needs test records of two classes)" if math.isnan(result.test_auc) else area,
        "test log loss": f"{result.test_log_loss:.4f}",
        "calibration error": f"{result.test_calibration_error:.4f}",
    }


def _private_head(result: TrainResult) -> dict[str, str]:
    from tpsl.report.words import LARGE_DELTA_TEXT, guarantee_text
    from tpsl.vault.budget import is_large_delta

    large = f". {LARGE_DELTA_TEXT}" if is_large_delta(result.total_delta, result.train_records) else ""
    judged = f"{result.validation_auc:.4f}  (from noisy labels)"
    head = {"epoch kept": f"{result.kept_epoch} of {result.epochs}"} if result.kept_epoch != result.epochs else {}
    if result.statistic_records:
        head = {"private head": f"fitted on noisy statistics of {result.statistic_records:,} labels"}
    has_noisy_labels = result.statistic_records < result.train_records
    noisy_labels = f", estimator {result.estimator}, {result.draws} draw(s)" if has_noisy_labels else ""
    return {
        "mechanism": result.mechanism + noisy_labels,
        "guarantee": guarantee_text(result) + large,
        **head,
        **({"hold-out AUC": judged} if math.isfinite(result.validation_auc) else {}),
        **_tested(result),
    }
