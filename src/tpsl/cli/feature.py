"""`tpsl feature join`: a feature party of a job, as a program of its own."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tpsl.cli.console import JsonFlag, print_json, say
from tpsl.cli.local_options import (
    CertsOption,
    DeviceOption,
    InsecureLoopbackFlag,
    JobArgument,
    LocalOption,
    LogJsonFlag,
    MetricsPortOption,
    OutOption,
    OwnDataOption,
    RecordTranscriptFlag,
    SilenceOption,
    ThreadsOption,
    WaitOption,
    one_side,
)
from tpsl.cli.log_options import LogOption
from tpsl.cli.termination import stoppable

app = typer.Typer(no_args_is_help=True, help="A feature party: has features, connects, sends embeddings.")


@app.callback()
def _group() -> None:
    """Keep `join` a command of its own while it is the only one."""


@app.command("join")
def join(
    job: JobArgument,
    connect: Annotated[str | None, typer.Option(help="Where the label party listens, HOST:PORT.")] = None,
    party: Annotated[
        str | None, typer.Option(help="Which feature party of the job. Default: the one its certificate names.")
    ] = None,
    local: LocalOption = None,
    certs: CertsOption = None,
    out: OutOption = None,
    data: OwnDataOption = None,
    threads: ThreadsOption = None,
    device: DeviceOption = None,
    wait: WaitOption = None,
    silence: SilenceOption = None,
    metrics_port: MetricsPortOption = None,
    insecure_loopback: InsecureLoopbackFlag = False,
    log_json: LogJsonFlag = False,
    log: LogOption = None,
    record_transcript: RecordTranscriptFlag = False,
    json: JsonFlag = False,
) -> None:
    """Be a feature party: connect to the label party of the job and train with it.

    A run that was interrupted goes on where it stopped when the same command is given again. Example:

    tpsl feature join job.yaml --connect label.example:7443 --certs certs/airport
    """
    side = one_side(
        job,
        local,
        party=party,
        out=out,
        connect=connect,
        certificates=certs,
        data=data,
        threads=threads,
        device=device,
        wait=wait,
        silence=silence,
        metrics_port=metrics_port,
    )

    from tpsl.cli.live import Live
    from tpsl.training import ALL_STEPS
    from tpsl.training.join import join as run
    from tpsl.training.loggers import run_logger

    epochs, port = side.job.training.epochs, side.local.metrics_port
    with (
        stoppable("the same command goes on where it stopped; the label party waits for it", log_json=log_json),
        Live("feature", side.party, peers=["label"], epochs=epochs, log_json=log_json, metrics_port=port) as live,
        run_logger(side.job, side.out, side.party, live.notice, log) as logger,
    ):
        live.loggers.append(logger)
        result = run(
            side.job,
            side.party,
            side.local,
            side.out,
            observer=live,
            watch=live.watch,
            progress=live.progress,
            notice=live.notice,
            record_steps=ALL_STEPS if record_transcript else 0,
            insecure_loopback=insecure_loopback,
        )
    if json:
        print_json(asdict(result))
        return
    say(f"{'run':<18} {result.run}")
    say(f"{'weights':<18} {side.out / side.party / 'bottom.safetensors'}")
    say(f"{'trained':<18} {result.steps:,} steps, {result.epochs} epoch(s) of {result.train_records:,} records")
    say(f"{'speed':<18} {result.samples_per_second:,.0f} samples/s")
