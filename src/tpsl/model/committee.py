"""A committee of networks: the probabilities of all, each by its weight.

Each party's share is those of the members side by side, in their order; the label party's half cuts them apart again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tpsl.model.half_loading import Predictor, Probabilities


def mixture(members: Iterable[tuple[float, npt.NDArray[np.floating]]]) -> Probabilities:
    """Return the mixture of weighted probabilities, of class 1 (`[n]`) or of each (`[n, k]`); the weights add up to 1.

    Members are asked for one at a time, and added up in their order.
    """
    total: npt.NDArray[np.float64] | None = None
    for weight, probabilities in members:
        weighted = weight * probabilities.astype(np.float64)
        total = weighted if total is None else total + weighted
    if total is None:
        raise ValueError("a committee without members predicts nothing")
    return total.astype(np.float32)


@dataclass(frozen=True)
class Committee:
    """The top halves of all members, each with its weight; the weights add up to 1."""

    members: tuple[tuple[float, Predictor], ...]

    @property
    def widths(self) -> Mapping[str, int]:
        """The width of each party's share: those of all members side by side."""
        _, first = self.members[0]
        return {party: sum(top.widths[party] for _, top in self.members) for party in first.widths}

    def probabilities(self, shares: Mapping[str, Tensor]) -> Probabilities:
        """Return what the committee says of the records whose shares these are."""
        of_members = {
            party: torch.split(share, [top.widths[party] for _, top in self.members], dim=1)
            for party, share in shares.items()
        }
        return mixture(
            (weight, top.probabilities({party: parts[number].contiguous() for party, parts in of_members.items()}))
            for number, (weight, top) in enumerate(self.members)
        )
