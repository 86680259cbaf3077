"""The network in one piece, in plain PyTorch with sparse gradients, without privacy: the baseline of all speeds."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from contenders.plain_network import Task
from contenders.turns import Turns


def main() -> None:
    """Train for ever, in turns."""
    task = Task.read(Path(sys.argv[1]))
    shape, loss = task.shape, task.loss()
    bottom, top = task.bottom(sparse=shape["updates"] == "lazy").to(shape["device"]), task.top().to(shape["device"])
    optimizers = task.optimizers(bottom, top)
    turns = Turns(torch.cuda.synchronize if shape["device"] == "cuda" else lambda: None)
    for rows in task.rows():
        for optimizer in optimizers:
            optimizer.zero_grad()
        numeric = task.numeric[rows] if shape["numbers"] else None
        loss(top(bottom(task.categorical[rows], numeric)), task.targets(task.labels[rows])).backward()
        for optimizer in optimizers:
            optimizer.step()
        turns.step_done()


if __name__ == "__main__":
    main()
