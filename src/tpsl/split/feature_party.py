"""The feature party (the paper's non-label party): its side of Algorithms 1 and 3, which is the same."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.models.halves import Bottoms
from tpsl.models.optimizer import HalfOptimizer
from tpsl.split.batches import Batches, Gathered


class FeatureParty:
    """Holds inputs and the bottom half f. Sees of the labels only the gradients it receives.

    A step is one or more `forward`, a `backward` for each in the same order, and one `update`. With `run_ahead` the
    next step's `forward` may come before the `update` of this one; gradients are then those at the weights that the
    forward pass used.
    """

    def __init__(
        self,
        bottom: Bottoms,
        optimizer: HalfOptimizer,
        inputs: Features | Inputs,
        *,
        run_ahead: bool = False,
    ) -> None:
        self.bottom = bottom
        self.optimizer = optimizer
        self._batches = Batches(inputs, next(bottom.parameters()).device)
        self._cuts: deque[Tensor] = deque()
        self._run_ahead = run_ahead
        self.expect = self._batches.expect
        """Begins to read the inputs of some rows, whose forward pass will be the next one."""

    @property
    def resident_inputs(self) -> tuple[Tensor, ...]:
        """All inputs, if they are in the memory of the device that computes."""
        return self._batches.resident

    def share(self, rows: Rows | Gathered) -> Tensor:
        """Return `e_i = f(x_i)` with what back-propagation needs; a label party's own share goes on in its process."""
        with self._weights_kept() if self._run_ahead else nullcontext():
            cut: Tensor = self.bottom.learning()(*self._batches.batch(rows))
        return cut

    def forward(self, rows: Rows | Gathered) -> Tensor:
        """Return the embeddings `e_i = f(x_i)` to send, and keep what the backward phase needs."""
        cut = self.share(rows)
        self._cuts.append(cut)
        return cut.detach()

    def backward(self, gradients: Tensor, records: int) -> None:
        """Take the received `g̃_i` for the oldest forward pass; adds `(1/n)·Σ_i g̃_i ∂e_i/∂θ_N`, n = `records`."""
        if not self._cuts:
            raise RuntimeError("backward without a forward before it")
        cut = self._cuts.popleft()
        cut.backward(gradients.to(cut.device) / records)  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """`θ_N ← θ_N - η·(what backward added)`, or what the optimiser makes of it."""
        self.optimizer.step()

    @torch.no_grad()
    def embed(self, rows: Rows) -> Tensor:
        """Return embeddings for prediction, by the averaged weights; nothing is learned from them."""
        with self.optimizer.averaged():
            embeddings: Tensor = self.bottom.predicting()(*self._batches.batch(rows))
        return embeddings

    def _weights_kept(self) -> AbstractContextManager[object]:
        """An update before the backward pass must not change the weights that it needs: they are copied.

        The backward pass of an embedding table needs no weights, so the copies are those of other layers.
        """
        held = {t.untyped_storage().data_ptr() for t in (*self.bottom.parameters(), *self.bottom.buffers())}

        def pack(saved: Tensor) -> Tensor:
            return saved.clone() if saved.untyped_storage().data_ptr() in held else saved

        return saved_tensors_hooks(pack, lambda kept: kept)
