"""A rich, label-free description b of a record, from what the label party has of it.

    x = embeddings and ranks, standardised, and cells: 1 where a code or a rank has one of its frequent values
    b = x, relu(c·A + a), (c·B)∘(c·C)      with A, B, C, a drawn at random

where c are the ranks and the cells of codes, or the embeddings where there are none. A function that is linear in b is
nearly additive in the fields; the rectified features add smooth functions of all fields together, the products add what
pairs of fields do together.
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
    """Of fields: categories as whole numbers, which only tell records apart, and ranks, which lie between 0 and 1."""


class Expansion(nn.Module):
    """Maps what the label party has of records to b. Its kinds of features: embeddings, fields, rectified, products.

    The features of fields are cells of ranks, ranks, and cells of codes; what is drawn at random reads the last two.
    """

    numbers: Tensor
    ranks: Tensor
    mean: Tensor
    scale: Tensor
    cell_columns: Tensor
    cell_values: Tensor
    random: Tensor
    shift: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in state.items():
            self.register_buffer(name, tensor)
        self._cells_of_ranks = int(torch.isin(self.cell_columns, self.ranks).sum())

    @property
    def kinds(self) -> tuple[int, int, int, int]:
        """How many features of each kind there are."""
        return len(self.numbers), len(self.ranks) + len(self.cell_values), len(self.shift), len(self.shift)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return b of records, float32 `[n, features]`; finite for every input."""
        x = self.plain(inputs)
        rectified, one, other = (x[:, -len(self.random) :] @ self.random).chunk(3, dim=1)
        products = (one * other).clamp(-_FAR, _FAR)
        return torch.cat([x, torch.relu(rectified + self.shift), products], dim=1)

    def plain(self, inputs: Tensor) -> Tensor:
        """Return x of records."""
        read = torch.nan_to_num(inputs.index_select(1, torch.cat([self.numbers, self.ranks])))
        numbers = ((read - self.mean) / self.scale).clamp(-_FAR, _FAR)
        embeddings, ranks = torch.split(numbers, [len(self.numbers), len(self.ranks)], dim=1)
        cells = (inputs.index_select(1, self.cell_columns) == self.cell_values).float()
        return torch.cat([embeddings, cells[:, : self._cells_of_ranks], ranks, cells[:, self._cells_of_ranks :]], dim=1)

    @classmethod
    def learn(cls, sample: Tensor, columns: InputColumns, random_features: int, generator: torch.Generator) -> Self:
        """Learn scales and frequent values from these records, and draw random features of each of the two kinds."""
        codes = sample[:, columns.codes]
        is_rank = ((codes > 0) & (codes < 1)).all(dim=0).numpy()
        ranks = columns.codes[is_rank]
        numbers = torch.nan_to_num(sample[:, np.concatenate([columns.numbers, ranks])].double())
        mean, deviation = numbers.mean(dim=0), _deviation(numbers)
        # Cells of ranks come first.
        cells = sorted(_frequent(codes.numpy()), key=lambda cell: (not is_rank[cell[0]], cell))
        known = cls(
            {
                "numbers": torch.from_numpy(columns.numbers),
                "ranks": torch.from_numpy(ranks),
                "mean": mean.float(),
                "scale": torch.where(deviation > 1e-6, deviation, 1.0).float(),
                "cell_columns": torch.tensor([int(columns.codes[place]) for place, _ in cells], dtype=torch.int64),
                "cell_values": torch.tensor([value for _, value in cells], dtype=torch.float32),
                "shift": _SHIFT * torch.randn(random_features, generator=generator),
            }
        )
        read = known.plain(sample)
        skipped = len(columns.numbers) + known._cells_of_ranks
        read = read[:, skipped:] if read.shape[1] > skipped else read
        return known.with_random(torch.randn(read.shape[1], 3 * random_features, generator=generator), read)

    @property
    def fields(self) -> Tensor:
        """The column of the inputs that each feature of x belongs to."""
        split = self._cells_of_ranks
        return torch.cat([self.numbers, self.cell_columns[:split], self.ranks, self.cell_columns[split:]])

    def with_random(self, drawn: Tensor, read: Tensor) -> Self:
        """Return the expansion with these random features, scaled so that what is rectified has the variance 1.

        They read the last features of x, as many as `drawn` has rows, which are `read` of some records.
        """
        kept = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        return type(self)({**kept, "random": drawn / _deviation(read @ drawn).clamp(min=1e-6)})


def _deviation(columns: Tensor) -> Tensor:
    return (columns - columns.mean(dim=0)).square().mean(dim=0).sqrt()


def _frequent(codes: npt.NDArray[np.float32]) -> list[tuple[int, float]]:
    """Return the most frequent values of the codes as (place of the column, value)."""
    least = max(_RECORDS_OF_A_CELL, _SHARE_OF_A_CELL * len(codes))
    counts: Counter[tuple[int, float]] = Counter()
    for place, column in enumerate(codes.T):
        values, found = np.unique(column[np.isfinite(column)], return_counts=True)
        # A value that all records have tells nothing.
        kept = (found >= least) & (found < len(codes))
        counts |= Counter({(place, float(v)): int(n) for v, n in zip(values[kept], found[kept], strict=True)})
    return [cell for cell, _ in counts.most_common(_MOST_CELLS)]
