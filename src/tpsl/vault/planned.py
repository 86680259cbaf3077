"""A release of noisy labels that is asked for, and what it will cost."""

import math
from dataclasses import dataclass
from typing import Protocol

from tpsl.mechanisms import Cost, Mechanism
from tpsl.vault.budget import repeated, times
from tpsl.vault.errors import VaultError
from tpsl.vault.ledger import Series, as_json, canonical


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
