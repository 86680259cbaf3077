"""`tpsl label serve` and `tpsl feature join`: one party of a job each, as a program of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, Report, answer
from tpsl.cli.on_ray import trains_on_ray, with_ray
from tpsl.cli.run_result import show_result
from tpsl.cli.settings import (
    RELEASE_FLAGS,
    START_FLAGS,
    JobArgument,
    LocalOption,
    LogOption,
    RecordTranscriptFlag,
    Settings,
    settings_command,
)
from tpsl.cli.termination import stoppable
from tpsl.cli.verbosity import reasons, with_verbose

if TYPE_CHECKING:
    from tpsl.training.job import Job
    from tpsl.training.local import Local
    from tpsl.training.observer import Watching
    from tpsl.training.result import FeatureResult
    from tpsl.workers import Workers

label_app = typer.Typer(
    no_args_is_help=True, help="The label party: has the labels, listens, sends perturbed gradients."
)
feature_app = typer.Typer(no_args_is_help=True, help="A feature party: has features, connects, sends embeddings.")

InsecureLoopbackFlag = Annotated[
    bool, typer.Option("--insecure-loopback", help="No TLS and no certificates, on this machine only. For tries.")
]
_SHARED = {"certs": "local.certificates", "out": "local.out"}
LogJsonFlag = Annotated[bool, typer.Option("--log-json", help="JSON lines on standard error, no live line.")]


@label_app.callback()
@feature_app.callback()
def _group() -> None:
    """Keep the only command of a group a command of its own."""


@dataclass(frozen=True)
class Side:
    """One side of a job, ready to run."""

    job: Job
    party: str
    local: Local
    out: Path
    context: typer.Context

    @classmethod
    def of(cls, context: typer.Context, job_file: Path, local_file: Path | None, party: str | None = None) -> Side:
        """Return the side that the files and the options describe; `party` if the command says who it is."""
        from tpsl.training.local import party_of

        settings = Settings.of(context)
        job, local = settings.load_job(job_file), settings.load_local(local_file)
        me = party_of(job, local, party or local.party)
        return cls(job, me, local, local.out or Path("runs") / f"{job_file.stem}-{me}", context)

    @property
    def peers(self) -> list[str]:
        """The parties that this side talks with."""
        from tpsl.data.dataset import feature_party_names
        from tpsl.transport.peers import LABEL_PARTY

        return list(feature_party_names(self.job.data)) if self.party == LABEL_PARTY else [LABEL_PARTY]

    @property
    def workers(self) -> Workers:
        """The workers of this side. The first one tells how the side runs and what comes out."""
        from tpsl.workers import Workers

        return Workers.of_this_process(self.local.device)

    @contextmanager
    def watched(self, log: list[str] | None, log_json: bool) -> Iterator[Watching]:
        """Show how this side runs until the block ends, and tell the loggers.

        Of several workers the first shows it and tells the loggers; the others show what ends them.
        """
        from tpsl.cli.live import Live
        from tpsl.training.loggers import run_logger
        from tpsl.training.observer import Watching
        from tpsl.transport.peers import LABEL_PARTY

        workers, others = self.workers, "feature parties wait" if self.party == LABEL_PARTY else "label party waits"
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
            run_logger(self.job, self.out, self.party, live.notice, log, {"display": live})
            if workers.is_first
            else nullcontext(live) as observer,
        ):
            live.state.may_end_early = self.job.training.patience > 0
            yield Watching(observer, live.progress, live.notice, live.watch, reasons(self.context, live.notice))


@label_app.command(
    cls=with_ray(with_verbose(settings_command(listen="local.listen", **_SHARED, **START_FLAGS, **RELEASE_FLAGS)))
)
def serve(
    context: typer.Context,
    job: JobArgument,
    local: LocalOption = None,
    record_transcript: RecordTranscriptFlag = False,
    log: LogOption = None,
    log_json: LogJsonFlag = False,
    insecure_loopback: InsecureLoopbackFlag = False,
    json: JsonFlag = False,
) -> None:
    """Be the label party: wait for the feature parties of the job and train with them.

    A job that asks for more than you permit is refused before the port is opened. A run that was interrupted goes on
    where it stopped when the same command is given again. It ends when training ends: `tpsl label evaluate` computes
    test metrics and the local head, whose time would tell of labels. Example:

    tpsl label serve job.yaml --listen 0.0.0.0:7443 --certs certs/label

    Several processes train together if torchrun starts them: torchrun --nproc-per-node 2 -m -- tpsl label serve …
    """
    side = Side.of(context, job, local, "label")
    if trains_on_ray(context, side.out, side.local.device):
        return

    from tpsl.training.one_process import ALL_STEPS
    from tpsl.training.serve import serve as run

    with side.watched(log, log_json) as watching:
        result = run(
            side.job,
            side.local,
            side.out,
            watching=watching,
            record_steps=ALL_STEPS if record_transcript else 0,
            insecure_loopback=insecure_loopback,
        )
    if side.workers.is_first:
        show_result(side.out, result, json, evaluated=False)


@feature_app.command(
    cls=with_ray(with_verbose(settings_command(connect="local.connect", party="local.party", **_SHARED, **START_FLAGS)))
)
def join(
    context: typer.Context,
    job: JobArgument,
    local: LocalOption = None,
    record_transcript: RecordTranscriptFlag = False,
    log: LogOption = None,
    log_json: LogJsonFlag = False,
    insecure_loopback: InsecureLoopbackFlag = False,
    json: JsonFlag = False,
) -> None:
    """Be a feature party: connect to the label party of the job and train with it.

    A run that was interrupted goes on where it stopped when the same command is given again. Example:

    tpsl feature join job.yaml --connect label.example:7443 --certs certs/airport

    Several processes train together if torchrun starts them: torchrun --nproc-per-node 2 -m -- tpsl feature join …
    """
    side = Side.of(context, job, local)
    if trains_on_ray(context, side.out, side.local.device):
        return

    from tpsl.training.join import join as run
    from tpsl.training.one_process import ALL_STEPS
    from tpsl.training.run_folder import RunFolder

    with side.watched(log, log_json) as watching:
        result = run(
            side.job,
            side.party,
            side.local,
            side.out,
            watching=watching,
            record_steps=ALL_STEPS if record_transcript else 0,
            insecure_loopback=insecure_loopback,
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
