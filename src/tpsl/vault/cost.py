"""What a release costs: one that is asked for, what releases cost together, and what the label party permits.

Sums of epsilons and deltas never come out too small.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from tpsl.mechanisms import Cost, Mechanism, StatisticNoise, check_bound, compose, epsilon_of_rho, float_above
from tpsl.mechanisms.exact import rounded_up
from tpsl.vault.errors import VaultError

MOST_NUMBERS = 1 << 24
"""The most numbers of one statistic, all its vectors together."""
DEFAULT_MAX_EPSILON = 10.0
Who = Literal["record", "unit", "person"]


@dataclass(frozen=True)
class Spent:
    """The largest ε and δ that any of some records, units or people has spent over all its releases."""

    epsilon: float = 0.0
    delta: float = 0.0
    private: bool = True
    """False if any of the records had a release with seeded noise or with none."""
    records: int = 0
    """How many records this speaks of; those of the one unit or person that has spent most, if it is about these."""
    who: Who = "record"
    """A unit (for example a user) spends what all its records do. A person is in a vault whose records alignments have
    made, and may have spent what a record of each of them has."""
    released_under: tuple[str, ...] = ()
    """The releases in words, where all of the records were part of the same ones."""

    def joined(self, other: "Spent") -> "Spent":
        """What is true of the records of both: the larger of each."""
        return Spent(
            max(self.epsilon, other.epsilon),
            max(self.delta, other.delta),
            self.private and other.private,
            self.records + other.records,
            max(self.who, other.who, key=("record", "unit", "person").index),
        )

    def plus(self, other: "Spent") -> "Spent":
        """What the same records have spent that have spent both."""
        epsilon, delta = total([self.epsilon, other.epsilon]), total([self.delta, other.delta])
        return Spent(epsilon, delta, self.private and other.private, self.records, self.who, self.released_under)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data; an infinite ε is the text "inf"."""
        found = {"records": self.records, "epsilon": as_json(self.epsilon), "delta": self.delta}
        return found | ({"released_under": list(self.released_under)} if self.released_under else {})


def as_json(number: float) -> float | str:
    """A float that survives JSON: infinity as the text "inf", which `float` reads back."""
    return "inf" if math.isinf(number) else number


def total(parts: Iterable[float]) -> float:
    """The sum of non-negative numbers, computed exactly and rounded up to a float; infinity stays infinity.

    Basic composition: releases of one record with (epsilon_i, delta_i) together have (sum epsilon_i, sum delta_i).
    """
    parts = list(parts)
    if any(math.isinf(part) for part in parts):
        return math.inf
    return float_above(sum((Fraction(part) for part in parts), Fraction(0)))


def times(part: float, count: int) -> float:
    """`count` times `part`, rounded up."""
    if count == 0 or math.isinf(part):
        return part if count else 0.0
    return float_above(Fraction(part) * count)


def repeated(cost: Cost, count: int) -> Cost:
    """What `count` independent releases cost together: one for each of a unit's records."""
    rho = cost.zcdp
    return Cost(times(cost.epsilon, count), times(cost.delta, count), None if rho is None else count * rho)


def of_group(cost: Cost, count: int) -> Cost:
    """What one release costs a unit that `count` of its records have a part in: group privacy.

    `count` labels that change together move a statistic `count` times as far: count·ε for pure ε, count²·ρ for zCDP
    (Bun and Steinke 2016, Proposition 1.9), stated at the same δ.
    """
    if count == 1:
        return cost
    if cost.rho is None:
        return Cost(times(cost.epsilon, count))
    rho = count**2 * cost.rho
    return Cost(epsilon_of_rho(rho, cost.delta), cost.delta, rho)


def is_large_delta(delta: float, records: int) -> bool:
    """Say whether δ is above 1/records: then ε is expected to fail for at least one record."""
    return delta > 1 / max(records, 1)


def check_delta(delta: float, records: int, max_delta: float | None = None) -> None:
    """Raise a `VaultError` if the δ of a record is above `max_delta`; None: above 1/records.

    With probability δ the promise of ε may fail for a record altogether: a mechanism that shows one label in a thousand
    as it is has δ = 0.001. Above 1/records that is expected to happen to at least one of them.
    """
    if max_delta is not None and not 0 <= max_delta <= 1:
        raise VaultError(f"the largest δ must be a number from 0 to 1, not {max_delta}")
    if is_large_delta(delta, records) if max_delta is None else delta > max_delta:
        limit = f"1/records = {1 / max(records, 1):.3g} for {records:,} records"
        stated = limit if max_delta is None else f"{max_delta:g}"
        raise VaultError(
            f"a record would have δ = {delta:.6g} in all, more than {stated}: with that probability ε promises nothing "
            "for it; allow it with max_delta (--set local.max_delta=…) if you mean it"
        )


def canonical(data: object) -> str:
    """One line of JSON, the same for equal data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Series:
    """Releases that are one and the same: within a series each record has at most one outcome for each draw.

    A statistic is a series of its own: the same noise for the same records with the same vectors.
    """

    spec: str
    digest: str
    """Of the integers of the mechanism, or of the noise."""
    draws: int
    seed: int | None


@dataclass(frozen=True)
class Planned:
    """A release of noisy labels that is asked for: what it costs each record that its series does not cover yet."""

    mechanism: Mechanism
    draws: int = 1
    seed: int | None = None
    """None: secure noise. Any other makes the noise repeatable, and the release NOT PRIVATE."""

    def __post_init__(self) -> None:
        _require_whole("draws", self.draws)
        if self.seed is not None:
            _require_whole("the seed", self.seed, least=None)

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

    def details(self) -> dict[str, object]:
        """What its ledger entry says of it, whatever the records are."""
        same = _details(self.mechanism.spec(), str(self.mechanism), self.cost, self.seed)
        return {**same, "table_digest": self.mechanism.digest, "draws": self.draws}


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
        _require_whole("the width of a statistic", self.width)
        if self.seed is not None:
            _require_whole("the seed", self.seed, least=None)
        _require_whole("the releases of a statistic", self.releases)

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

    def details(self) -> dict[str, object]:
        """What its ledger entry says of it, whatever the records and the q_i are."""
        plan, cost = self.plan, self.plan.cost(self.classes)
        return {
            **_details(plan.noise.spec(), self.description, cost, plan.seed),
            "noise_digest": plan.noise.digest,
            "bound": plan.bound,
            "width": plan.width,
            "classes": self.classes,
            "rho": None if cost.rho is None else str(cost.rho),
            "releases": plan.releases,
        }


def _details(mechanism: Mapping[str, object], description: str, cost: Cost, seed: int | None) -> dict[str, object]:
    """What the ledger says of a release of either kind."""
    noise = "secure" if seed is None else "seeded"
    what = {"mechanism": mechanism, "description": description, "noise": noise, "seed": seed}
    return {**what, "epsilon": as_json(cost.epsilon), "delta": cost.delta}


def _require_whole(what: str, number: object, least: int | None = 1) -> None:
    """Raise a `VaultError` unless something is a whole number, from `least` on."""
    if isinstance(number, bool) or not isinstance(number, int) or (least is not None and number < least):
        raise VaultError(f"{what} must be a whole number{'' if least is None else f' from {least}'}, not {number!r}")


@dataclass(frozen=True)
class ReleasePolicy:
    """What a release may cost at most. The label party's own: no job and no other party sets it.

    `max_epsilon` bounds the ledger's total of each record after the release, all draws and earlier releases counted; in
    a vault that counts people, what anybody can have spent over all alignments.
    `max_delta` bounds their δ in the same way; None: 1/records. `not_private` permits what promises nothing: no noise,
    seeded noise, an infinite ε. `compose` permits a further release of records that were released before under another
    mechanism or ε, as this label or as the same one under another name.
    """

    max_epsilon: float = DEFAULT_MAX_EPSILON
    not_private: bool = False
    compose: bool = False
    max_delta: float | None = None

    def __post_init__(self) -> None:
        if not self.max_epsilon >= 0:
            raise VaultError(f"the largest ε that is permitted is a number from 0 on, not {self.max_epsilon!r}")

    def check(self, after: Spent, records: int) -> None:
        """Raise a `VaultError` unless the records may have spent what they will have spent after the release.

        `records` is how many there are in all, whose number bounds δ.
        """
        if not after.private:
            if not self.not_private:
                raise VaultError(
                    "this release is NOT PRIVATE: labels without noise, or with noise from a seed, can be read; the "
                    "label party permits that only with `not_private` in its local file, on the command line "
                    "(--set local.not_private=true) or in Python"
                )
        elif after.epsilon > self.max_epsilon:
            raise VaultError(
                f"this release would bring {spent_after(after)}, more than the ε = {self.max_epsilon:g} that the label "
                "party permits; `max_epsilon` in its local file, or --set local.max_epsilon=…, permits more"
            )
        else:
            check_delta(after.delta, records, self.max_delta)


def spent_after(after: Spent) -> str:
    """Return whom a release brings to which ε."""
    epsilon = f"{after.epsilon:.9g}" if math.isfinite(after.epsilon) else "∞"
    return f"{'people' if after.who == 'person' else 'the records'} to ε = {epsilon} in all"


NO_LIMITS = ReleasePolicy(max_epsilon=float("inf"), not_private=True)
"""For experiments: any ε, also none; a second release of the same records and a large δ have to be asked for."""
