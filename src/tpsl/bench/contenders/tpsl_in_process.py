"""This package with all parties in one process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tpsl.bench.contenders.turns import Turns
from tpsl.bench.shape import Shape
from tpsl.models.computing import Computing, compute
from tpsl.training.observer import NullObserver, Watching
from tpsl.training.one_process import train


class TakesTurns(NullObserver):
    """Waits after a step until it is the contender's turn."""

    def __init__(self, device: torch.device) -> None:
        self._turns = Turns(torch.cuda.synchronize if device.type == "cuda" else lambda: None)
        self._done = 0

    def at_step(self, done: int, total: int, records: int) -> None:
        """Note the steps since the last call."""
        self._turns.step_done(done - self._done)
        self._done = done


def main() -> None:
    """Train the job in turns, in a run in the working directory."""
    shape = Shape.read(Path(sys.argv[1]))
    torch.set_num_threads(shape.threads)
    settings = json.loads(sys.argv[2])
    compute(Computing(settings.pop("precision", "float32")))
    job = shape.job(**settings)
    device = torch.device(shape.device)
    train(job, Path("run"), data=shape.records(), device=device, watching=Watching(TakesTurns(device)))


if __name__ == "__main__":
    main()
