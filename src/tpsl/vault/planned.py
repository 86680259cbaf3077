"""A release of noisy labels, or a noisy statistic, that is asked for, and what it will cost."""

import math
from dataclasses import dataclass
from typing import Protocol

from tpsl.mechanisms import Cost, Mechanism, StatisticNoise, check_bound, compose
from tpsl.mechanisms.exact import rounded_up
from tpsl.vault.cost import as_json, of_group, repeated, times
from tpsl.vault.errors import VaultError
from tpsl.vault.ledger import Series, canonical

MOST_NUMBERS = 1 << 24
"""The most numbers of one statistic, all its vectors together."""


class Charge(Protocol):
    """A release, made or asked for: what it costs."""

    @property
    def cost(self) -> Cost:
        """What it costs each of its records."""

    def cost_of(self, records: int) -> Cost:
        """What it costs a unit of which it covers this number of records."""

    @property
    def private(self) -> bool:
        """False where ε promises nothing."""

    @property
    def series(self) -> Series | None:
        """The series that it belongs to; None: it is not known yet, and costs what it costs."""


@dataclass(frozen=True)
class Planned:
    """A release of noisy labels that is asked for: what it costs each record that its series does not cover yet."""

    mechanism: Mechanism
    draws: int = 1
    seed: int | None = None
    """None: secure noise. Any other makes the noise repeatable, and the release NOT PRIVATE."""

    def __post_init__(self) -> None:
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise VaultError(f"draws must be a whole number from 1, not {self.draws!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise VaultError(f"the seed must be a whole number, not {self.seed!r}")

    @property
    def epsilon(self) -> float:
        """The exact ε of each record, all draws together, rounded up."""
        return times(self.mechanism.epsilon, self.draws)

    @property
    def delta(self) -> float:
        """The δ that goes with `epsilon`."""
        return times(self.mechanism.delta, self.draws)

    @property
    def cost(self) -> Cost:
        """ε and δ together."""
        return Cost(self.epsilon, self.delta)

    def cost_of(self, records: int) -> Cost:
        """What it costs a unit of which it covers this number of records, each with noise of its own."""
        return repeated(self.cost, records)

    @property
    def private(self) -> bool:
        """False for seeded noise, or none: then ε promises nothing."""
        return self.seed is None and math.isfinite(self.epsilon)

    @property
    def series(self) -> Series:
        """The series that it belongs to."""
        return Series(canonical(self.mechanism.spec()), self.mechanism.digest, self.draws, self.seed)

    def details(self, records: int, ids_digest: str, outcomes_digest: str) -> dict[str, object]:
        """The details of its ledger entry."""
        return {
            "mechanism": self.mechanism.spec(),
            "description": str(self.mechanism),
            "table_digest": self.mechanism.digest,
            "epsilon": as_json(self.epsilon),
            "delta": self.delta,
            "draws": self.draws,
            "noise": "secure" if self.seed is None else "seeded",
            "seed": self.seed,
            "records": records,
            "ids_digest": ids_digest,
            "outcomes_digest": outcomes_digest,
        }


@dataclass(frozen=True)
class StatisticPlan:
    """What is released at once of many labels: `T = Σ_i y_i q_i` with noise, over integer vectors q_i.

    Of k > 2 classes it is one such sum `T_c = Σ_i 1[y_i = c] q_i` for each class c.
    """

    noise: StatisticNoise
    bound: int
    """No q_i has a norm above it, in the norm of the noise: the vault scales down those that do."""
    width: int
    """The number of coordinates of each q_i."""
    seed: int | None = None
    """None: secure noise. Any other makes the noise repeatable, and the release NOT PRIVATE."""
    releases: int = 1
    """How many such sums of the same records belong together, each over vectors that may be chosen in view of those
    before. All of them are asked for with the first: the others are no composition that would have to be permitted."""

    def __post_init__(self) -> None:
        try:
            check_bound(self.bound)
        except ValueError as error:
            raise VaultError(str(error)) from error
        if isinstance(self.width, bool) or not isinstance(self.width, int) or self.width < 1:
            raise VaultError(f"the width of a statistic must be a whole number from 1, not {self.width!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise VaultError(f"the seed must be a whole number, not {self.seed!r}")
        if isinstance(self.releases, bool) or not isinstance(self.releases, int) or self.releases < 1:
            raise VaultError(f"the releases of a statistic must be a whole number from 1, not {self.releases!r}")

    def shape(self, classes: int) -> tuple[int, int]:
        """(number of vectors, width): one vector says all of two classes."""
        return (1 if classes == 2 else classes), self.width

    def cost(self, classes: int) -> Cost:
        """What one release costs each record, whatever the q_i are."""
        return self.noise.cost(self.bound, classes)

    def total(self, classes: int) -> Cost:
        """What all its releases together cost each record, however later q_i were chosen."""
        return compose([self.cost(classes)] * self.releases)

    @property
    def private(self) -> bool:
        """False for seeded noise, or none: then ε promises nothing."""
        return self.seed is None and self.noise.deviation > 0


@dataclass(frozen=True)
class PlannedStatistic:
    """A statistic of the labels of a vault that is asked for, or all that are left of the releases of its plan."""

    plan: StatisticPlan
    classes: int
    releases: int = 1
    """How many of them."""

    def __post_init__(self) -> None:
        if math.prod(self.plan.shape(self.classes)) > MOST_NUMBERS:
            raise VaultError(
                f"a statistic of width {self.plan.width:,} for {self.classes:,} classes has more than "
                f"{MOST_NUMBERS:,} numbers; make it narrower"
            )

    @property
    def cost(self) -> Cost:
        """What it costs each of its records."""
        return compose([self.plan.cost(self.classes)] * self.releases)

    def cost_of(self, records: int) -> Cost:
        """What it costs a unit of which it covers this number of records, which share its noise."""
        return compose([of_group(self.plan.cost(self.classes), records)] * self.releases)

    @property
    def private(self) -> bool:
        """False where ε promises nothing."""
        return self.plan.private

    @property
    def series(self) -> None:
        """None: which series it belongs to follows from its q_i, which are not known yet."""

    @property
    def description(self) -> str:
        """What is released, in words."""
        plan, cost = self.plan, self.plan.cost(self.classes)
        vectors, width = plan.shape(self.classes)
        guarantee = f"ε = {rounded_up(cost.epsilon)}" + (f", δ = {rounded_up(cost.delta)}" if cost.delta else "")
        size = f"{width:,} numbers" if vectors == 1 else f"{vectors:,} × {width:,} numbers"
        return f"statistic of {size}, {plan.noise} ({guarantee})"

    def details(self, records: int, ids_digest: str, phi_digest: str, values_digest: str) -> dict[str, object]:
        """The details of its ledger entry."""
        plan, cost = self.plan, self.plan.cost(self.classes)
        return {
            "mechanism": plan.noise.spec(),
            "description": self.description,
            "noise_digest": plan.noise.digest,
            "bound": plan.bound,
            "width": plan.width,
            "classes": self.classes,
            "epsilon": as_json(cost.epsilon),
            "delta": cost.delta,
            "rho": None if cost.rho is None else str(cost.rho),
            "noise": "secure" if plan.seed is None else "seeded",
            "seed": plan.seed,
            "releases": plan.releases,
            "records": records,
            "ids_digest": ids_digest,
            "phi_digest": phi_digest,
            "values_digest": values_digest,
        }
