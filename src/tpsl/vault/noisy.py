"""`NoisyLabels`: what training may see of the labels."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism
from tpsl.vault.budget import times

VAULT_ONLY = object()
"""What the vault shows when it makes `NoisyLabels`."""
Room = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]
"""What gives room for an array of a shape and type, as `numpy.empty` does; what is large may lie in a file."""


@dataclass(frozen=True, eq=False, slots=True)
class NoisyLabels:
    """Released noisy labels of some records, in the order they were asked for; only a vault can make them.

    Holds neither true labels nor ids. `draws` has one read-only array of outcomes [n, *mechanism.outcome_shape] for
    each independent draw: one for section 4.2 of "Differentially Private Label Protection in Split Learning" (epsilon),
    two for its Algorithm 3 (twice epsilon). Everything computed from these is post-processing of the release.
    """

    mechanism: Mechanism
    draws: tuple[npt.NDArray[Any], ...]
    private: bool
    """False when the noise was seeded or the mechanism adds none: then epsilon promises nothing."""
    _made_by: object = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self._made_by is not VAULT_ONLY:
            raise TypeError(
                "NoisyLabels come out of a vault only: release labels with Vault.release, then ask Vault.noisy_labels"
            )
        for draw in self.draws:
            draw.flags.writeable = False

    @property
    def epsilon(self) -> float:
        """The exact epsilon of one record's release, over all draws, rounded up."""
        return times(self.mechanism.epsilon, len(self.draws))

    @property
    def delta(self) -> float:
        """The delta of one record's release, over all draws, rounded up."""
        return times(self.mechanism.delta, len(self.draws))

    def __len__(self) -> int:
        return len(self.draws[0])

    def take(self, rows: npt.NDArray[Any] | slice) -> "NoisyLabels":
        """The noisy labels of these rows (indices, a mask or a slice), in that order."""
        chosen = tuple(np.array(draw[rows], ndmin=draw.ndim) for draw in self.draws)
        return NoisyLabels(self.mechanism, chosen, self.private, VAULT_ONLY)
