"""This package as two processes on loopback with mutual TLS.

This process is the feature party, and takes turns; it starts the label party, which follows. Both are what `tpsl label
serve` and `tpsl feature join` run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

from tpsl.bench.contenders.tpsl_in_process import TakesTurns
from tpsl.bench.shape import Device, Shape
from tpsl.training.job import Job
from tpsl.training.join import join
from tpsl.training.local import Local
from tpsl.training.observer import Fact, NullObserver, Watching
from tpsl.training.serve import serve
from tpsl.transport.certificates import create_authority, issue

LABEL, FEATURE = "label", "feature"


class PrintsAddress(NullObserver):
    """Prints where the label party listens."""

    def event(self, name: str, **facts: Fact) -> None:
        """Print the address when there is one."""
        if name == "listening":
            print(facts["address"], flush=True)


def be_label_party(job: Job) -> None:
    """Serve a feature party, on a port that is free."""
    local = Local(listen="127.0.0.1:0", certificates=Path(LABEL))
    serve(job, local, Path("run-label"), watching=Watching(PrintsAddress()))


def be_feature_party(job: Job, device: Device) -> None:
    """Start the label party, and train with it in turns."""
    create_authority(Path("authority"))
    for party in (LABEL, FEATURE):
        issue(Path("authority"), Path(party), party, label=party == LABEL)
    command = [sys.executable, *sys.argv, LABEL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as label:  # noqa: S603
        assert label.stdout is not None
        local = Local(connect=label.stdout.readline().strip(), certificates=Path(FEATURE), device=device)
        join(job, FEATURE, local, Path("run-feature"), watching=Watching(TakesTurns(torch.device(device))))


def main() -> None:
    """Be the party that the command names; the feature party if it names none."""
    shape = Shape.read(Path(sys.argv[1]))
    torch.set_num_threads(shape.threads)
    job = shape.job(**json.loads(sys.argv[2]))
    if sys.argv[3:] == [LABEL]:
        be_label_party(job)
    else:
        be_feature_party(job, shape.device)


if __name__ == "__main__":
    main()
