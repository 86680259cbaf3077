"""DP-SGD of Opacus with ghost clipping on the network in one piece.

Batches are drawn as everywhere here; Opacus's own loader, which draws each record by chance, would be slower.
Install: `pip install opacus==1.6.0 torch`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from contenders.plain_network import Task
from contenders.turns import Turns


def main() -> None:
    """Train for ever, in turns."""
    task = Task.read(Path(sys.argv[1]))
    # Sparse gradients are not supported: noise falls on every row of the table.
    network = nn.Sequential(task.bottom(sparse=False), task.top())
    private, optimizer, loss, _ = PrivacyEngine().make_private(
        module=network,
        optimizer=task.sgd(network),
        criterion=task.loss(),
        data_loader=DataLoader(TensorDataset(task.categorical, task.labels), batch_size=task.shape["batch"]),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode="ghost",
    )
    turns = Turns()
    for categorical, labels in task.batches():
        optimizer.zero_grad()
        loss(private(categorical), task.targets(labels)).backward()
        optimizer.step()
        turns.step_done()


if __name__ == "__main__":
    main()
