"""The halves of the network as sites of NVFlare: a job of its Collab interface names these classes.

A step is a forward pass at the feature site, one call of the label site's published method, and a backward pass; what
crosses is float16, as in NVFlare's own example (cifar10-splitnn).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from nvflare.collab import collab
from torch import Tensor

from contenders.plain_network import Task
from contenders.turns import Turns

FEATURE, LABEL = "site-1", "site-2"
CALL_SECONDS = 600.0


class Site:
    """One site with its half of the network; both sites are of this class."""

    @collab.init
    def prepare(self) -> None:
        """Read the records and build the half of this site."""
        self.task = Task.read(Path(collab.get_app_prop("task")))
        self.half = self.task.bottom() if collab.site_name == FEATURE else self.task.top()
        self.optimizer = self.task.sgd(self.half)

    @collab.publish
    def train(self) -> None:
        """Be the feature site: train for ever, in turns."""
        label_site, turns = collab.get_clients([LABEL])[0], Turns()
        for rows in self.task.rows():
            cut = self.half(self.task.categorical[rows])
            gradients = label_site(timeout=CALL_SECONDS).answer(rows.numpy(), cut.detach().half())
            self.optimizer.zero_grad()
            cut.backward(gradients.float())
            self.optimizer.step()
            turns.step_done()

    @collab.publish
    def answer(self, rows: npt.NDArray[np.int64], cut: Tensor) -> Tensor:
        """Be the label site: update the top half, and return the gradients of the cut."""
        received = cut.float().requires_grad_()
        targets = self.task.targets(self.task.labels[torch.from_numpy(rows)])
        self.optimizer.zero_grad()
        self.task.loss()(self.half(received), targets).backward()
        self.optimizer.step()
        assert received.grad is not None
        return received.grad.half()


class Coordinator:
    """The server, which has the feature site train."""

    @collab.main
    def run(self) -> None:
        """Start the training."""
        collab.get_clients([FEATURE])[0](timeout=86_400.0).train()
