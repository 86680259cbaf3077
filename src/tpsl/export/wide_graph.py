"""The wide part of a network (`tpsl.heads.cross_fitting`) as a module that PyTorch can export."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tpsl.heads.additive import FAR, AdditiveModel, Axis


class WideScore(nn.Module):
    """The log-odds that an additive model gives encoded records.

    Guarantee: those of `AdditiveModel.scores`, computed in float64 as there, but for the order of the sums.
    """

    lows: Tensor
    sizes: Tensor
    starts: Tensor
    effects: Tensor
    slopes: Tensor

    def __init__(self, model: AdditiveModel) -> None:
        super().__init__()
        # Copies, here and below: torch.export cannot keep an empty view of NumPy's memory.
        sizes = np.array([len(effects) for effects in model.effects], dtype=np.int64)
        self.base = model.base
        self.register_buffer("lows", torch.tensor(model.lows))
        self.register_buffer("sizes", torch.tensor(sizes - 1))
        self.register_buffer("starts", torch.tensor(np.cumsum(sizes) - sizes))
        self.register_buffer("effects", torch.tensor(np.concatenate([np.empty(0), *model.effects])))
        self.register_buffer("slopes", torch.tensor(model.slopes))
        self.pairs = nn.ModuleList(_Pair(*pair, cells) for pair, cells in zip(model.pairs, model.cells, strict=True))

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return the scores, float32 of shape `[n, 1]`."""
        numbers = numeric.double()
        score = (numbers.clamp(-FAR, FAR) * self.slopes).sum(dim=1, keepdim=True) + self.base
        if len(self.lows):
            codes = _codes(categorical.long() - self.lows, self.sizes)
            score = score + self.effects[self.starts + codes].sum(dim=1, keepdim=True)
        for pair in self.pairs:
            score = score + pair(categorical, numbers)[:, None]
        return score.float()


class _Pair(nn.Module):
    """The effects of the cells of two axes."""

    cells: Tensor

    def __init__(self, one: Axis, other: Axis, cells: np.ndarray) -> None:
        super().__init__()
        self.one, self.other, self.columns = _AxisCodes(one), _AxisCodes(other), other.size + 1
        self.register_buffer("cells", torch.tensor(cells))

    def forward(self, categorical: Tensor, numbers: Tensor) -> Tensor:
        codes = self.one(categorical, numbers) * self.columns + self.other(categorical, numbers)
        return self.cells[codes]


class _AxisCodes(nn.Module):
    """The codes of one axis: a category counted from the lowest, or the number of bin edges that a number reaches."""

    edges: Tensor
    size: Tensor

    def __init__(self, axis: Axis) -> None:
        super().__init__()
        self.column, self.categorical, self.low = axis.column, axis.categorical, axis.low
        self.register_buffer("size", torch.tensor(axis.size))
        self.register_buffer("edges", torch.tensor(axis.edges))

    def forward(self, categorical: Tensor, numbers: Tensor) -> Tensor:
        if self.categorical:
            return _codes(categorical[:, self.column].long() - self.low, self.size)
        return (numbers[:, self.column, None] >= self.edges).sum(dim=1)


def _codes(codes: Tensor, sizes: Tensor) -> Tensor:
    """Return codes from 0; `sizes` for one that training did not see."""
    return torch.where((codes >= 0) & (codes < sizes), codes, sizes)
