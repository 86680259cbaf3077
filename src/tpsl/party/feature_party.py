"""The feature party (the paper's non-label party): its side of Algorithms 1 and 3, which is the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tpsl.data.features import Features
from tpsl.models import Bottom, HalfOptimizer

Rows = npt.NDArray[np.int64]


class FeatureParty:
    """Holds features and the bottom half f. Sees of the labels only the gradients it receives."""

    def __init__(self, bottom: Bottom, optimizer: HalfOptimizer, features: Features) -> None:
        self.bottom = bottom
        self.optimizer = optimizer
        self._inputs = FeatureTensors(features)
        self._cut: Tensor | None = None

    def forward(self, rows: Rows) -> Tensor:
        """Return the embeddings `e_i = f(x_i)` to send, and keep what the backward phase needs."""
        self._cut = self.bottom(*self._inputs.batch(rows))
        return self._cut.detach()

    def backward(self, gradients: Tensor) -> None:
        """Take the received `g̃_i` for the last batch and update `θ_N ← θ_N - η·(1/n)·Σ_i g̃_i ∂e_i/∂θ_N`."""
        if self._cut is None:
            raise RuntimeError("backward without a forward before it")
        self._cut.backward(gradients / len(gradients))  # type: ignore[no-untyped-call]
        self._cut = None
        self.optimizer.step()

    @torch.no_grad()
    def embed(self, rows: Rows) -> Tensor:
        """Return embeddings for prediction; nothing is learned from them."""
        embeddings: Tensor = self.bottom(*self._inputs.batch(rows))
        return embeddings


class FeatureTensors:
    """Encoded features as tensors that batches are gathered from."""

    def __init__(self, features: Features) -> None:
        self._categorical = torch.from_numpy(np.require(features.categorical, requirements=["W", "C"]))
        self._numeric = torch.from_numpy(np.require(features.numeric, requirements=["W", "C"]))

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return categories and numbers of these rows."""
        index = torch.from_numpy(np.require(rows, requirements=["W"]))
        return self._categorical.index_select(0, index), self._numeric.index_select(0, index)
