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
    """Gathers batches on a device: of encoded features by index there, of other inputs by asking for them."""

    def __init__(self, inputs: Features | Inputs, device: torch.device | None = None) -> None:
        self._inputs, self._device = inputs, device
        arrays = (inputs.categorical, inputs.numeric) if isinstance(inputs, Features) else ()
        self._features = [self._tensor(array) for array in arrays]

    def batch(self, rows: Rows) -> tuple[Tensor, ...]:
        """Return what a bottom half is called with for these rows: of features, categories and numbers."""
        if isinstance(self._inputs, Features):
            index = self._tensor(rows)
            found = tuple(values.index_select(0, index) for values in self._features)
            self._inputs.release_pages()
            return found
        return tuple(map(self._tensor, self._inputs.batch(rows)))

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(np.require(array, requirements=["W", "C"])).to(self._device)
