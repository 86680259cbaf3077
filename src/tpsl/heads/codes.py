"""Codes of a party's fields: which category a record has, and which bin a number falls into.

A feature party shows them to the label party only where the job says `statistic.share_codes`. The code of a category is
a whole number that tells it apart and says nothing of its meaning: its row in the party's embedding table. The code of
a number is its rank: which quantile among the training records it falls into, between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.split.batches import Batches

LARGEST = (1 << 24) - 1
"""Every whole number up to here is a float32."""
_BINS = 16
_ROWS_READ = 1 << 18


class CodeBook(nn.Module):
    """Categories and numbers as the encoder gives them → codes, float32 `[n, fields]`."""

    edges: Tensor
    categories: Tensor

    def __init__(self, categories: Tensor, edges: Tensor) -> None:
        super().__init__()
        self.register_buffer("categories", categories)
        self.register_buffer("edges", edges)

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Self:
        """Return the code book whose `state_dict` this is."""
        return cls(state["categories"], state["edges"])

    @property
    def width(self) -> int:
        """The number of fields."""
        return int(self.categories) + len(self.edges)

    @classmethod
    def learn(cls, features: Features, train: Rows) -> Self:
        """Learn the bins of numbers from training records, at most a quarter of a million of them, evenly spaced."""
        if features.embedding_rows > LARGEST:
            raise ValueError(f"codes are for at most {LARGEST:,} categories, not for {features.embedding_rows:,}")
        read = train[:: -(-len(train) // _ROWS_READ)]
        numbers = features.batch(read)[1]
        edges = np.full((numbers.shape[1], _BINS - 1), np.inf, np.float32)
        for column, values in enumerate(numbers.T):
            found = np.unique(np.quantile(values, np.arange(1, _BINS) / _BINS).astype(np.float32))
            edges[column, : len(found)] = found
        return cls(torch.tensor(len(features.categorical_fields)), torch.from_numpy(edges))

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return the category of each categorical field and the rank of each number: the middle of its bin."""
        bins = (numeric[:, :, None] >= self.edges).sum(dim=2)
        return torch.cat([categorical.float(), (bins + 0.5) / _BINS], dim=1)

    @torch.no_grad()
    def embed(self, features: Features, rows: Rows) -> Tensor:
        """Return the codes of these rows."""
        codes: Tensor = self(*Batches(features).batch(rows))
        return codes
