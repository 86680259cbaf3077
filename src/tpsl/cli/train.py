"""`tpsl train`: run a job in one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, notice, progress_bar
from tpsl.cli.on_ray import trains_on_ray, with_ray
from tpsl.cli.run_result import show_result
from tpsl.cli.settings import (
    JOB_FLAGS,
    RELEASE_FLAGS,
    START_FLAGS,
    LocalsOption,
    LogOption,
    Settings,
    settings_command,
)
from tpsl.cli.termination import stoppable
from tpsl.cli.verbosity import reasons, with_verbose

if TYPE_CHECKING:
    from tpsl.progress import Notice
    from tpsl.training.job import Job
    from tpsl.training.observer import Watching
    from tpsl.workers import Workers

_SIDE_FLAGS = {"seed": "training.seed", "out": "local.out", "device": "local.device", "threads": "local.threads"}
COMMAND = with_ray(with_verbose(settings_command(**JOB_FLAGS, **START_FLAGS, **_SIDE_FLAGS, **RELEASE_FLAGS)))

OPTIONS_ALONE = {"method": "auto"}
"""The job that options change where there is no job file: a file says itself what crosses, and this one is ours."""


def train(
    context: typer.Context,
    job: Annotated[Path | None, typer.Argument(help="Job file (YAML). Without one, the options make a job.")] = None,
    local: LocalsOption = None,
    record_transcript: Annotated[
        bool,
        typer.Option(
            "--record-transcript", help="Keep all that crossed the border, not only the first 64 steps, for attacks."
        ),
    ] = False,
    scratch: Annotated[
        bool,
        typer.Option(
            "--scratch",
            help="For the owner of both tables, to try things: any ε, also none. The run has its own vault, which "
            "counts in no total, and nothing of the run may leave.",
        ),
    ] = False,
    log: LogOption = None,
    json: JsonFlag = False,
) -> None:
    """Train a split network; options override the job file.

    Example: tpsl train job.yaml --out runs/first
    """
    with progress_bar("starting"):  # it takes seconds
        from tpsl.training.one_process import ALL_STEPS, train_together
        from tpsl.training.run_folder import RunFolder
        from tpsl.training.setup import RunSetup
        from tpsl.training.transcript import RECORDED_STEPS
        from tpsl.workers import Workers

    if job is None and Path("job.yaml").exists():
        notice("no job file was named, so job.yaml in this folder is not used")
    parties = Settings.of(context).load_parties(job or OPTIONS_ALONE, local)
    agreed, at_label = parties.job, parties.label
    workers = Workers.of_this_process(at_label.device)
    name = f"{agreed.data.source}-{agreed.privacy.mechanism}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = at_label.out or Path("runs") / workers.broadcast(name)
    if trains_on_ray(context, run, at_label.device):
        return
    with (
        stoppable(f"the same command with --out {run} goes on where it stopped"),
        watched_by_first(workers, agreed, run, log, reasons(context, notice)) as watching,
    ):
        device = workers.device(at_label.device)
        # Several workers cannot record, and a GPU takes recorded steps one by one.
        by_default = 0 if workers.are_several or device.type == "cuda" else RECORDED_STEPS
        setup = RunSetup(
            agreed,
            RunFolder(run),
            parties.own,
            device,
            ALL_STEPS if record_transcript else by_default,
            watching,
            start=at_label.starting_point(),
            workers=workers,
        )
        result = train_together(setup, at_label.vault_choice(scratch=scratch))
    if workers.is_first:
        show_result(run, result, json)


@contextmanager
def watched_by_first(
    workers: Workers, job: Job, run: Path, log: list[str] | None, reason: Notice
) -> Iterator[Watching]:
    """Show a progress bar until the block ends, and tell the loggers; of several workers the first does."""
    from tpsl.training.loggers import run_logger
    from tpsl.training.observer import Watching
    from tpsl.transport.peers import LABEL_PARTY

    if not workers.is_first:
        yield Watching()
        return
    early = job.training.patience > 0
    with (
        progress_bar("training", may_end_early=early) as progress,
        run_logger(job, run, LABEL_PARTY, notice, log) as logger,
    ):
        yield Watching(logger, progress, notice, reason=reason)
