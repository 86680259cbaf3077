"""This package as a contender: one party of a job, or all of them in one process, without the live line.

A party is what `tpsl label serve` and `tpsl feature join` are, on loopback with mutual TLS; `both` is `tpsl train`.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch

from contenders.turns import Turns
from tpsl.models.halves import compute_in
from tpsl.run.job import load_job
from tpsl.run.local import Local
from tpsl.run.observer import Fact, Observer, Watching
from tpsl.run.one_process import train
from tpsl.run.over_network import join, serve
from tpsl.vault.place import VARIABLE as HOME


class InTurns(Observer):
    """Takes a turn after every step."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._waiting_since: float | None = None

    def waiting_for(self, peer: str | None) -> None:
        now = time.perf_counter()
        if self._waiting_since is not None:
            self._turns.waited += now - self._waiting_since
        self._waiting_since = now if peer is not None else None

    def at_step(self, done: int, total: int, records: int) -> None:
        self._turns.step_done()


class ShowsAddress(Observer):
    """Prints where the label party listens."""

    def event(self, name: str, **facts: Fact) -> None:
        if name == "listening":
            print(facts["address"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["label", "feature", "both"])
    parser.add_argument("job", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--connect")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32", help="of the role both")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    job = load_job(options.job)
    folder = options.job.parent
    os.environ[HOME] = str(folder / "home")  # the vault of a benchmark is not that of whoever runs it
    if options.role == "both":
        compute_in(options.precision)
        train(job, folder / "run", watching=Watching(InTurns()))
        return
    local = Local(device=options.device)
    if options.role == "label":
        label = local.overridden(listen="127.0.0.1:0", certificates=folder / "certs-label")
        serve(job, label, folder / "run-label", watching=Watching(ShowsAddress()))
        return
    (party,) = job.data.feature_parties
    feature = local.overridden(connect=options.connect, certificates=folder / f"certs-{party}")
    join(job, party, feature, folder / "run-feature", watching=Watching(InTurns()))


if __name__ == "__main__":
    main()
