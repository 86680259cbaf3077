"""The options of one side of a job over a network, shared by `label serve` and `feature join`.

All but the last three override the same key of the local file (`tpsl.training.local`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import warn
from tpsl.cli.privacy_options import given

if TYPE_CHECKING:
    from tpsl.training.job import Job
    from tpsl.training.local import Local


class DeviceName(StrEnum):
    """Where a side computes."""

    cpu = "cpu"
    cuda = "cuda"


LocalOption = Annotated[
    Path | None,
    typer.Option("--local", help="This side's local file (YAML) with the settings below; options override it."),
]
CertsOption = Annotated[
    Path | None, typer.Option("--certs", help="This party's certificate folder: ca.pem, cert.pem, key.pem.")
]
OutOption = Annotated[Path | None, typer.Option(help="Run folder. An interrupted run in it is resumed.")]
OwnDataOption = Annotated[Path | None, typer.Option("--data", help="This party's own file, instead of the job's path.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")]
DeviceOption = Annotated[DeviceName | None, typer.Option(help="Where this side computes. Default: cpu.")]
WaitOption = Annotated[
    float | None, typer.Option(min=0, help="Seconds to wait for a peer to come, or to come back. Default: 3600.")
]
SilenceOption = Annotated[
    float | None, typer.Option(help="A peer that was not heard for so many seconds is gone. Default: 15.")
]
MetricsPortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics on this port of 127.0.0.1.")
]
InsecureLoopbackFlag = Annotated[
    bool, typer.Option("--insecure-loopback", help="No TLS and no certificates, on this machine only. For tries.")
]
LogJsonFlag = Annotated[bool, typer.Option("--log-json", help="JSON lines on standard error, no live line.")]
RecordTranscriptFlag = Annotated[
    bool, typer.Option("--record-transcript", help="Keep all that crossed the border, for attacks and audits.")
]


JobArgument = Annotated[Path, typer.Argument(help="The job file (YAML) that all parties hold.")]


@dataclass(frozen=True)
class Side:
    """One side of a job, ready to run."""

    job: Job
    party: str
    local: Local
    out: Path


def one_side(job_file: Path, local_file: Path | None, *, party: str | None, out: Path | None, **options: Any) -> Side:
    """Return the job, who this side is and its local settings: the local file's with the options in place."""
    from tpsl.training.job import load_job
    from tpsl.training.local import Local, load_local, party_of

    job = load_job(job_file)
    local = (load_local(local_file) if local_file else Local()).overridden(out=out, **given(**options))
    if local.threads is not None:
        import torch

        torch.set_num_threads(local.threads)
    if job.privacy.noise_seed is not None:
        warn("the noise is seeded: this run is NOT PRIVATE")
    me = party_of(job, local, party)
    return Side(job, me, local, local.out or Path("runs") / f"{job_file.stem}-{me}")
