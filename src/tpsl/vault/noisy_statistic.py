"""`NoisyStatistic`: what a label party may use of many labels at once."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Cost
from tpsl.vault.noisy import VAULT_ONLY
from tpsl.vault.statistic_plan import StatisticPlan


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
