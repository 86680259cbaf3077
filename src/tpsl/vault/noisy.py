"""`NoisyLabels` and `NoisyStatistic`: what training may see of the labels."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Cost, Mechanism
from tpsl.vault.cost import StatisticPlan, times

VAULT_ONLY = object()
"""What the vault shows when it makes one of these."""
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


@dataclass(frozen=True, eq=False, slots=True)
class NoisyStatistic:
    """`T = Σ_i y_i q_i` with noise, as a vault has released it; only a vault can make one.

    Holds neither labels nor ids nor any q_i. Whatever is computed from it, and from things that are not labels, is
    post-processing of the release: fits, shrinkage, any number of heads.
    """

    values: npt.NDArray[np.int64]
    """`[vectors, width]`, read-only: one vector for two classes, one for each of k > 2."""
    plan: StatisticPlan
    records: int
    private: bool
    """False when the noise was seeded or there is none: then ε promises nothing."""
    _made_by: object = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self._made_by is not VAULT_ONLY:
            raise TypeError("a NoisyStatistic comes out of a vault only: ask Vault.release_statistic")
        self.values.flags.writeable = False

    @property
    def classes(self) -> int:
        """The number of classes of the labels."""
        return max(2, len(self.values))

    @property
    def cost(self) -> Cost:
        """What it cost each of its records."""
        return self.plan.cost(self.classes)
