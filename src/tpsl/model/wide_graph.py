"""The wide part of a network (`tpsl.heads.wide_part`) as a module that PyTorch can export."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tpsl.heads.wide_part import FAR, AdditiveModel, Axis, Group


class WideScore(nn.Module):
    """The log-odds that an additive model gives encoded records.

    Guarantee: those of `AdditiveModel.scores`, computed in float64 as there, but for the order of the sums.
    """

    slopes: Tensor

    def __init__(self, model: AdditiveModel) -> None:
        super().__init__()
        self.base = model.base
        # Copies, here and below: torch.export cannot keep an empty view of NumPy's memory.
        self.register_buffer("slopes", torch.tensor(model.slopes))
        self.groups = nn.ModuleList(map(_Effects, model.groups))

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return the scores, float32 of shape `[n, 1]`."""
        numbers = numeric.double()
        score = (numbers.clamp(-FAR, FAR) * self.slopes).sum(dim=1) + self.base
        for group in self.groups:
            score = score + group(categorical, numbers)
        return score.float()[:, None]


class _Effects(nn.Module):
    """The effects of a field's categories, or of the cells of a pair."""

    effects: Tensor

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.axes = nn.ModuleList(map(_AxisCodes, group.axes))
        self.widths = [axis.size + 1 for axis in group.axes]
        self.register_buffer("effects", torch.tensor(group.effects))

    def forward(self, categorical: Tensor, numbers: Tensor) -> Tensor:
        cells = torch.zeros(1, dtype=torch.int64)
        for width, axis in zip(self.widths, self.axes, strict=True):
            cells = cells * width + axis(categorical, numbers)
        return self.effects[cells]


class _AxisCodes(nn.Module):
    """The codes of one axis: a category counted from the lowest, or the number of bin edges that a number reaches."""

    edges: Tensor
    size: Tensor

    def __init__(self, axis: Axis) -> None:
        super().__init__()
        self.column, self.low, self.is_number = axis.column, axis.low, bool(len(axis.edges))
        self.register_buffer("size", torch.tensor(axis.size))
        self.register_buffer("edges", torch.tensor(axis.edges))

    def forward(self, categorical: Tensor, numbers: Tensor) -> Tensor:
        if self.is_number:
            return (numbers[:, self.column, None] >= self.edges).sum(dim=1)
        codes = categorical[:, self.column].long() - self.low
        return torch.where((codes >= 0) & (codes < self.size), codes, self.size)
