"""A rich, label-free description b of a record, from what the label party has of it.

    x = numbers, standardised, and cells: 1 where a code has one of its frequent values
    b = x, relu(c·A + a), (c·B)∘(c·C)      with A, B, C, a drawn at random, and c the cells, or x where there are none

A function that is linear in b is nearly additive in the fields; the rectified features add smooth functions of all
fields together, the products add what pairs of fields do together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Columns = npt.NDArray[np.int64]

_FAR = 4.0  # standard deviations; a number farther out counts as this far
_MOST_CELLS = 1536
_RECORDS_OF_A_CELL, _SHARE_OF_A_CELL = 20, 0.001  # a value needs as many of the records that cells are learned from
_SHIFT = 0.5


@dataclass(frozen=True)
class InputColumns:
    """Which of a record's numbers are of which kind, by their places in its row."""

    numbers: Columns
    """Embeddings, scores and log-odds."""
    codes: Columns
    """Whole numbers that only tell records apart: categories and bins."""


class Expansion(nn.Module):
    """Maps what the label party has of records to b, in four kinds of features: numbers, cells, rectified, products."""

    numbers: Tensor
    mean: Tensor
    scale: Tensor
    cell_columns: Tensor
    cell_codes: Tensor
    random: Tensor
    shift: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in state.items():
            self.register_buffer(name, tensor)

    @property
    def kinds(self) -> tuple[int, int, int, int]:
        """How many features of each kind there are."""
        return len(self.mean), len(self.cell_codes), len(self.shift), len(self.shift)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return b of records, float32 `[n, features]`; finite for every input."""
        x = torch.cat([self._numbers(inputs), self._cells(inputs)], dim=1)
        rectified, one, other = (x[:, -len(self.random) :] @ self.random).chunk(3, dim=1)
        products = (one * other).clamp(-_FAR, _FAR)
        return torch.cat([x, torch.relu(rectified + self.shift), products], dim=1)

    def _numbers(self, inputs: Tensor) -> Tensor:
        numbers = torch.nan_to_num(inputs.index_select(1, self.numbers))
        return ((numbers - self.mean) / self.scale).clamp(-_FAR, _FAR)

    def _cells(self, inputs: Tensor) -> Tensor:
        return (inputs.index_select(1, self.cell_columns) == self.cell_codes).float()

    @classmethod
    def learn(cls, sample: Tensor, columns: InputColumns, random_features: int, generator: torch.Generator) -> Self:
        """Learn scales and frequent codes from these records, and draw random features of each of the two kinds."""
        numbers = torch.nan_to_num(sample[:, columns.numbers].double())
        deviation = numbers.std(dim=0, correction=0)
        cells = _frequent(sample[:, columns.codes].numpy())
        known = cls(
            {
                "numbers": torch.from_numpy(columns.numbers),
                "mean": numbers.mean(dim=0).float(),
                "scale": torch.where(deviation > 1e-6, deviation, 1.0).float(),
                "cell_columns": torch.tensor([int(columns.codes[place]) for place, _ in cells], dtype=torch.int64),
                "cell_codes": torch.tensor([code for _, code in cells], dtype=torch.float32),
                "shift": _SHIFT * torch.randn(random_features, generator=generator),
            }
        )
        read = known.read(sample)
        return known.with_random(torch.randn(read.shape[1], 3 * random_features, generator=generator), read)

    def read(self, inputs: Tensor) -> Tensor:
        """Return what random features read of records: codes say all that embeddings of them do, and less mixed up."""
        return self._cells(inputs) if len(self.cell_codes) else self._numbers(inputs)

    @property
    def fields(self) -> Tensor:
        """The column of the inputs that each of the features that are read belongs to."""
        return self.cell_columns if len(self.cell_codes) else self.numbers

    def with_random(self, drawn: Tensor, read: Tensor) -> Self:
        """Return the same expansion with other random features, such that what is rectified has the variance 1."""
        scale = (read @ drawn).std(dim=0, correction=0).clamp(min=1e-6)
        kept = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        return type(self)({**kept, "random": drawn / scale})


def _frequent(codes: npt.NDArray[np.float32]) -> list[tuple[int, float]]:
    """Return the most frequent values of the codes as (place of the column, value), in a fixed order."""
    least = max(_RECORDS_OF_A_CELL, _SHARE_OF_A_CELL * len(codes))
    counts: Counter[tuple[int, float]] = Counter()
    for place, column in enumerate(codes.T):
        values, found = np.unique(column[np.isfinite(column)], return_counts=True)
        # A value that all records have tells nothing.
        kept = (found >= least) & (found < len(codes))
        counts |= Counter({(place, float(v)): int(n) for v, n in zip(values[kept], found[kept], strict=True)})
    return sorted(cell for cell, _ in counts.most_common(_MOST_CELLS))
