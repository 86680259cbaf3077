"""`tpsl label serve`: the label party of a job, as a program of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from tpsl.cli.console import JsonFlag
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
from tpsl.cli.release_options import (
    AllowLookalikesFlag,
    ComposeFlag,
    MaxDeltaOption,
    MaxEpsilonOption,
    NotPrivateFlag,
    VaultOption,
)
from tpsl.cli.termination import stoppable
from tpsl.cli.train import show_result

app = typer.Typer(no_args_is_help=True, help="The label party: has the labels, listens, sends perturbed gradients.")


@app.callback()
def _group() -> None:
    """Keep `serve` a command of its own while it is the only one."""


@app.command("serve")
def serve(
    job: JobArgument,
    listen: Annotated[str | None, typer.Option(help="Address to listen at, HOST:PORT; 0.0.0.0 is every host.")] = None,
    vault: VaultOption = None,
    max_epsilon: MaxEpsilonOption = None,
    max_delta: MaxDeltaOption = None,
    not_private: NotPrivateFlag = False,
    compose: ComposeFlag = False,
    allow_lookalikes: AllowLookalikesFlag = False,
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
    """Be the label party: wait for the feature parties of the job and train with them.

    A job that asks for more than you permit is refused before the port is opened. A run that was interrupted goes on
    where it stopped when the same command is given again. Example:

    tpsl label serve job.yaml --listen 0.0.0.0:7443 --certs certs/label
    """
    side = one_side(
        job,
        local,
        party="label",
        out=out,
        listen=listen,
        vault=vault,
        max_epsilon=max_epsilon,
        not_private=not_private or None,
        compose=compose or None,
        max_delta=max_delta,
        allow_lookalikes=allow_lookalikes or None,
        certificates=certs,
        data=data,
        threads=threads,
        device=device,
        wait=wait,
        silence=silence,
        metrics_port=metrics_port,
    )

    from tpsl.cli.live import Live
    from tpsl.data.dataset import feature_party_names
    from tpsl.training import ALL_STEPS
    from tpsl.training.loggers import run_logger
    from tpsl.training.serve import serve as run

    agreed = side.job
    peers, port = feature_party_names(agreed.data), side.local.metrics_port
    with (
        stoppable("the same command goes on where it stopped; the feature parties wait for it", log_json=log_json),
        Live(
            "label", "label", peers=peers, epochs=agreed.training.epochs, log_json=log_json, metrics_port=port
        ) as live,
        run_logger(agreed, side.out, side.party, live.notice, log) as logger,
    ):
        live.loggers.append(logger)
        result = run(
            agreed,
            side.local,
            side.out,
            observer=live,
            watch=live.watch,
            progress=live.progress,
            notice=live.notice,
            record_steps=ALL_STEPS if record_transcript else 0,
            insecure_loopback=insecure_loopback,
        )
    show_result(result, json)
