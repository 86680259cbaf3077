"""A committee of networks: the probabilities of all, each by its weight.

Each party's share is those of the members side by side, in their order; the label party's half cuts them apart again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tpsl.prediction.halves import Predictor, Probabilities


class Mixture:
    """Adds up the probabilities of a committee's members, one prediction at a time."""

    def __init__(self) -> None:
        self._sum: npt.NDArray[np.float64] | None = None

    def add(self, weight: float, probabilities: npt.NDArray[np.floating]) -> None:
        """Add a member: probabilities of class 1 (shape `[n]`), or of each class (`[n, k]`)."""
        weighted = weight * probabilities.astype(np.float64)
        self._sum = weighted if self._sum is None else self._sum + weighted

    def predict(self) -> Probabilities:
        """Return the probabilities of the mixture; the weights of its members add up to 1."""
        if self._sum is None:
            raise ValueError("a committee without members predicts nothing")
        return self._sum.astype(np.float32)


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
        mixture = Mixture()
        of_members = {
            party: torch.split(share, [top.widths[party] for _, top in self.members], dim=1)
            for party, share in shares.items()
        }
        for number, (weight, top) in enumerate(self.members):
            own = {party: parts[number].contiguous() for party, parts in of_members.items()}
            mixture.add(weight, top.probabilities(own))
        return mixture.predict()
