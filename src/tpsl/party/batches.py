"""Batches of a party's inputs, as its bottom half reads them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tpsl.data.features import Features
from tpsl.data.split import Rows


class Inputs(Protocol):
    """Records that a user brings: anything that gives the tensors of some rows."""

    def __len__(self) -> int: ...

    def batch(self, rows: Rows) -> Any:
        """Return a tensor, or several, whose first dimension is that of `rows`."""


class Batches:
    """Gathers batches on a device: of encoded features by index there, of other inputs by asking for them."""

    def __init__(self, inputs: Features | Inputs, device: torch.device | None = None) -> None:
        self._inputs, self._device = inputs, device
        self._features: list[Tensor] = []
        if isinstance(inputs, Features):
            arrays = (inputs.categorical, inputs.numeric)
            self._features = [torch.from_numpy(np.require(a, requirements=["W", "C"])).to(device) for a in arrays]

    def batch(self, rows: Rows) -> tuple[Tensor, ...]:
        """Return what a bottom half is called with for these rows: of features, categories and numbers."""
        if isinstance(self._inputs, Features):
            index = torch.from_numpy(np.require(rows, requirements=["W"])).to(self._device)
            return tuple(values.index_select(0, index) for values in self._features)
        parts = self._inputs.batch(rows)
        return tuple(
            torch.as_tensor(part).to(self._device) for part in (parts if isinstance(parts, tuple) else (parts,))
        )
