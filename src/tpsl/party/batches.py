"""Batches of a party's inputs, as its bottom half reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tpsl.data.features import Features
from tpsl.data.source import Inputs
from tpsl.data.split import Rows


class Batches:
    """Gathers batches on a device: of encoded features in memory by index there, of other inputs by asking for them."""

    def __init__(self, inputs: Features | Inputs, device: torch.device | None = None) -> None:
        self._inputs, self._device = inputs, device
        self._features: list[Tensor] = []
        if isinstance(inputs, Features) and not inputs.is_mapped:
            self._features = [self._tensor(inputs.categorical), self._tensor(inputs.numeric)]

    def batch(self, rows: Rows) -> tuple[Tensor, ...]:
        """Return what a bottom half is called with for these rows: of features, categories and numbers."""
        if self._features:
            index = self._tensor(rows)
            return tuple(values.index_select(0, index) for values in self._features)
        return tuple(map(self._tensor, self._inputs.batch(rows)))

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(np.require(array, requirements=["W", "C"])).to(self._device)
