"""The feature map φ of a statistic: what the label party has of a record → a vector of norm at most 1.

It is learned from what parties sent of the statistic's records, without labels: what it is reveals nothing of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Inputs = npt.NDArray[np.float32]
Columns = npt.NDArray[np.int64]

ROWS_AT_ONCE = 16_384
_FAR = 4.0  # standard deviations; a number farther out counts as this far
_MOST_CELLS = 1024
_CELL_FROM = 0.002  # share of the records that a code needs to have a cell of its own
_CONSTANT = 0.25


@dataclass(frozen=True)
class InputColumns:
    """Which of a record's numbers are of which kind, by their places in its row."""

    numbers: Columns
    """Embeddings, scores and log-odds."""
    codes: Columns
    """Whole numbers that only tell records apart: categories and bins."""


class FeatureMap(nn.Module):
    """Standardised numbers and cells of frequent codes, scaled so that no vector is longer than 1."""

    mean: Tensor
    scale: Tensor
    numbers: Tensor
    cell_columns: Tensor
    cell_codes: Tensor
    length: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in state.items():
            self.register_buffer(name, tensor)

    @property
    def width(self) -> int:
        """The number of coordinates of φ."""
        return 1 + len(self.numbers) + len(self.cell_codes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return φ of records, float32 `[n, width]`, each of 2-norm at most 1 up to rounding."""
        numbers = (inputs.index_select(1, self.numbers) - self.mean) / self.scale
        cells = (inputs.index_select(1, self.cell_columns) == self.cell_codes).float()
        both = torch.cat([numbers.clamp(-_FAR, _FAR), cells], dim=1) / self.length
        norms = both.square().sum(dim=1, keepdim=True).sqrt()
        both = both / norms.clamp(min=1.0) * math.sqrt(1 - _CONSTANT**2)
        return torch.cat([torch.full_like(norms, _CONSTANT), both], dim=1)

    @classmethod
    def learn(cls, inputs: Inputs, columns: InputColumns) -> Self:
        """Learn scales and frequent codes from these records; no label has a part in it."""
        total = np.zeros(len(columns.numbers))
        squares, counts = total.copy(), [dict[float, int]() for _ in columns.codes]
        for block in blocks(inputs):
            numbers = block[:, columns.numbers].astype(np.float64)
            total, squares = total + numbers.sum(axis=0), squares + np.square(numbers).sum(axis=0)
            for found, column in zip(counts, columns.codes, strict=True):
                for code, count in zip(*np.unique(block[:, column], return_counts=True), strict=True):
                    found[float(code)] = found.get(float(code), 0) + int(count)
        mean = total / len(inputs)
        deviation = np.sqrt(np.maximum(squares / len(inputs) - mean**2, 0))
        cells = sorted(
            ((count, int(column), code) for column, found in zip(columns.codes, counts, strict=True)
             for code, count in found.items() if count >= _CELL_FROM * len(inputs)),
            key=lambda cell: (-cell[0], *cell[1:]),
        )[:_MOST_CELLS]  # fmt: skip
        usual = math.sqrt(len(columns.numbers) + len(columns.codes))
        return cls(
            {
                "mean": torch.from_numpy(mean.astype(np.float32)),
                "scale": torch.from_numpy(np.where(deviation > 0, deviation, 1.0).astype(np.float32)),
                "numbers": torch.from_numpy(columns.numbers),
                "cell_columns": torch.tensor([column for _, column, _ in cells], dtype=torch.int64),
                "cell_codes": torch.tensor([code for _, _, code in cells], dtype=torch.float32),
                "length": torch.tensor(1.5 * usual, dtype=torch.float32),
            }
        )


def blocks(inputs: Inputs) -> Iterator[Inputs]:
    """Yield the rows in blocks of bounded size, the same ones each time."""
    for start in range(0, len(inputs), ROWS_AT_ONCE):
        yield np.array(inputs[start : start + ROWS_AT_ONCE])
