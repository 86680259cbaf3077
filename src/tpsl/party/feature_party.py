"""The feature party (the paper's non-label party): its side of Algorithms 1 and 3, which is the same."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tpsl.data.features import Features
from tpsl.models import Bottom, BottomMembers, HalfOptimizer

Rows = npt.NDArray[np.int64]


class FeatureParty:
    """Holds features and the bottom half f. Sees of the labels only the gradients it receives.

    A step is one or more `forward`, a `backward` for each in the same order, and one `update`. With `run_ahead` the
    next step's `forward` may come before the `update` of this one; gradients are then those at the weights that the
    forward pass used.
    """

    def __init__(
        self,
        bottom: Bottom | BottomMembers,
        optimizer: HalfOptimizer,
        features: Features,
        *,
        run_ahead: bool = False,
    ) -> None:
        self.bottom = bottom
        self.optimizer = optimizer
        self._inputs = FeatureTensors(features, next(bottom.parameters()).device)
        self._cuts: deque[Tensor] = deque()
        self._run_ahead = run_ahead

    def forward(self, rows: Rows) -> Tensor:
        """Return the embeddings `e_i = f(x_i)` to send, and keep what the backward phase needs."""
        with self._weights_kept():
            cut = self.bottom(*self._inputs.batch(rows))
        self._cuts.append(cut)
        embeddings: Tensor = cut.detach()
        return embeddings

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
            embeddings: Tensor = self.bottom(*self._inputs.batch(rows))
        return embeddings

    def _weights_kept(self) -> AbstractContextManager[object]:
        """An update before the backward pass must not change the weights that it needs: they are copied.

        The backward pass of an embedding table needs no weights, so the copies are those of the dense layers.
        """
        if not self._run_ahead:
            return nullcontext()
        tables = {id(part.weight) for part in self.bottom.modules() if isinstance(part, nn.Embedding)}
        dense = {p.untyped_storage().data_ptr() for p in self.bottom.parameters() if id(p) not in tables}

        def pack(saved: Tensor) -> Tensor:
            return saved.clone() if saved.untyped_storage().data_ptr() in dense else saved

        return saved_tensors_hooks(pack, lambda kept: kept)


class FeatureTensors:
    """Encoded features as tensors that batches are gathered from."""

    def __init__(self, features: Features, device: torch.device | None = None) -> None:
        self._categorical = torch.from_numpy(np.require(features.categorical, requirements=["W", "C"])).to(device)
        self._numeric = torch.from_numpy(np.require(features.numeric, requirements=["W", "C"])).to(device)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return categories and numbers of these rows."""
        index = torch.from_numpy(np.require(rows, requirements=["W"])).to(self._categorical.device)
        return self._categorical.index_select(0, index), self._numeric.index_select(0, index)
