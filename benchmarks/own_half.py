"""A bottom half of a user's own, in the manner of DCN-V2 (Wang et al. 2021), for `gpu.py --own-half`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tpsl.data.features import Features


class CrossNetwork(nn.Module):
    """Embeddings, two cross layers `h ← x ⊙ (W h + b) + h`, and two dense ones with GELU and LayerNorm."""

    def __init__(self, width: int, inputs: Features, dim: int = 16) -> None:
        super().__init__()
        read = inputs.categorical.shape[1] * dim + inputs.numeric.shape[1]
        self.embedding = nn.Embedding(inputs.embedding_rows, dim)
        self.crosses = nn.ModuleList(nn.Linear(read, read) for _ in range(2))
        self.deep = nn.Sequential(
            nn.LayerNorm(read), nn.Linear(read, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, width), nn.GELU()
        )

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        inputs = torch.cat([self.embedding(categorical).flatten(start_dim=1), numeric], dim=1)
        hidden = inputs
        for cross in self.crosses:
            hidden = inputs * cross(hidden) + hidden
        output: Tensor = self.deep(hidden)
        return output


def bottom(width: int, inputs: Features) -> CrossNetwork:
    """Return the half, as `local.bottom` names it."""
    return CrossNetwork(width, inputs)


def compiled(width: int, inputs: Features) -> CrossNetwork:
    """Return the same half, compiled by PyTorch: each size of a batch by itself, so runs are repeated to the bit."""
    half = bottom(width, inputs)
    half.compile(dynamic=False)
    return half
