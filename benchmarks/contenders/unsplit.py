"""The network in one piece, in plain PyTorch with sparse gradients, without privacy."""

from __future__ import annotations

import sys
from pathlib import Path

from contenders.plain_network import Task
from contenders.turns import Turns


def main() -> None:
    """Train for ever, in turns."""
    task = Task.read(Path(sys.argv[1]))
    bottom, top, loss = task.bottom(), task.top(), task.loss()
    optimizer, turns = task.sgd(bottom, top), Turns()
    for categorical, labels in task.batches():
        optimizer.zero_grad()
        loss(top(bottom(categorical)), task.targets(labels)).backward()
        optimizer.step()
        turns.step_done()


if __name__ == "__main__":
    main()
