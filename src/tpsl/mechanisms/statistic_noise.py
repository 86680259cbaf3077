"""Noise for a statistic: integers added to `T = Σ_i y_i q_i`, where the q_i are integer vectors of bounded norm.

A label that changes moves T by q_i (two classes), or moves q_i from one of k vectors to another. So the noise that T
needs follows from the bound on the norm of the q_i alone. These come from the other party, which may be hostile:
`clip_rows` enforces the bound by integer arithmetic for every input, however it was computed. The noise consists of
exact integers too, so the cost is that of the numbers released, not of a formula that they approximate. Sums in 64 bits
that overflow wrap around, which is post-processing. Proofs: docs/mathematics.md, Theorem 5.

Ledgers keep specs for ever: a kind of noise means the same distribution for the same parameters for ever.
"""

from __future__ import annotations

import abc
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.base import Floats, check_classes, check_delta, check_epsilon
from tpsl.mechanisms.exact import (
    MAX_WIDTH,
    Cost,
    compose,
    delta_of_gaussian,
    epsilon_of_gaussian,
    epsilon_of_rho,
    float_above,
    rounded_up,
)
from tpsl.mechanisms.sampling import MAX_SCALE, MAX_VARIANCE, Integers, RandomWords, discrete_gaussian, discrete_laplace

Norm = Literal["l1", "l2"]

DEFAULT_BOUND = 1 << 15
"""Fine enough that rounding is lost in the noise; sums of up to 2^48 such vectors fit 64 bits."""
MAX_BOUND = 1 << 20
"""With this and `MAX_WIDTH` the squared norm of a row that is not scaled down yet fits 63 bits."""

_NUMBERS_AT_ONCE = 1 << 20


def to_integers(phi: npt.NDArray[np.floating], bound: int) -> npt.NDArray[np.int32]:
    """Return `round(bound·φ)` with every number within ±`bound`; NaN becomes 0, infinity the bound.

    The norm of a row can still be above the bound; `clip_rows` cuts it.
    """
    check_bound(bound)
    integers = np.empty(phi.shape, np.int32)
    for rows in _blocks(phi):
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = phi[rows].astype(np.float64) * bound
        integers[rows] = np.rint(np.nan_to_num(np.clip(scaled, -bound, bound), nan=0.0))
    return integers


def clip_rows(rows: npt.NDArray[np.integer], bound: int, norm: Norm) -> npt.NDArray[np.int32]:
    """Return the rows with every number cut to ±`bound` and every row scaled down until its norm is at most `bound`.

    Guarantee: `Σ_j |q_j| ≤ bound` ("l1") or `Σ_j q_j² ≤ bound²` ("l2") for each row, in integers, for any input.

    Raises:
        ValueError: the rows are not integers, or wider than `MAX_WIDTH`.
    """
    check_bound(bound)
    if rows.dtype.kind not in "iu" or rows.ndim != 2 or rows.shape[1] > MAX_WIDTH:
        raise ValueError(
            f"a statistic is summed from rows of at most {MAX_WIDTH:,} integers, got {rows.dtype} of shape {rows.shape}"
        )
    holds = np.iinfo(rows.dtype)
    least, largest = max(-bound, holds.min), min(bound, holds.max)
    clipped = np.empty(rows.shape, np.int32)
    for part in _blocks(rows):
        clipped[part] = np.clip(rows[part], least, largest)
        _scale_down(clipped[part], bound, norm)
    return clipped


def _scale_down(rows: npt.NDArray[np.int32], bound: int, norm: Norm) -> None:
    """Replace each row q that is too long by `bound·q/divisor`, rounded towards 0, with a divisor large enough."""
    size, limit = _sizes(rows, norm), bound if norm == "l1" else bound**2
    long = np.flatnonzero(size > limit)
    given = rows[long].astype(np.int64)
    # The first divisor to try; integers below check that it suffices. The norm rounded up always does.
    divisor = size[long] if norm == "l1" else np.sqrt(size[long]).astype(np.int64)
    while len(long):
        rows[long] = np.sign(given) * (np.abs(given) * bound // divisor[:, None])
        still = _sizes(rows[long], norm) > limit
        long, given, divisor = long[still], given[still], divisor[still] + 1


def _sizes(rows: npt.NDArray[np.int32], norm: Norm) -> npt.NDArray[np.int64]:
    """Return `Σ_j |q_j|` or `Σ_j q_j²` of each row, in 64 bits."""
    other = np.sign(rows) if norm == "l1" else rows
    return np.asarray(np.einsum("ij,ij->i", rows, other, dtype=np.int64))


def _blocks(rows: npt.NDArray[np.generic]) -> list[slice]:
    """Return slices of rows with about a million numbers each, which bounds the memory of intermediate results."""
    at_once = max(1, _NUMBERS_AT_ONCE // max(1, rows.shape[1]))
    return [slice(start, start + at_once) for start in range(0, len(rows), at_once)]


def check_bound(bound: int) -> int:
    """Return the bound, or raise a ValueError that says what is wrong with it."""
    if isinstance(bound, bool) or not isinstance(bound, int) or not 1 <= bound <= MAX_BOUND:
        raise ValueError(f"the bound of a statistic must be an integer from 1 to {MAX_BOUND:,}, got {bound!r}")
    return bound


@dataclass(frozen=True)
class StatisticNoise(abc.ABC):
    """Independent integer noise for each coordinate of a statistic."""

    kind: ClassVar[str]
    norm: ClassVar[Norm]
    """The norm of the q_i whose bound determines the cost."""
    gamma_shape: ClassVar[float]
    """`log_ratio(y, y)` of continuous noise y has the gamma distribution of this shape: what tests of its size need."""

    @property
    @abc.abstractmethod
    def deviation(self) -> float:
        """The standard deviation of the noise of one coordinate."""

    @abc.abstractmethod
    def sample(self, count: int, words: RandomWords) -> Integers:
        """Draw the noise of `count` coordinates."""

    @abc.abstractmethod
    def cost(self, bound: int, classes: int) -> Cost:
        """Return what one release costs each label if no q_i has a norm above `bound`, for any width."""

    def keeps(self, epsilon: float, bound: int, classes: int, releases: int = 1) -> bool:
        """Say whether the ε of a release, or of several together, is at most this."""
        return compose([self.cost(bound, classes)] * releases).epsilon <= epsilon

    @abc.abstractmethod
    def log_ratio(self, noisy: Integers | Floats, moved: int | Integers | Floats) -> Floats:
        """Return `ln P(noisy - moved) / P(noisy)`: the evidence of noisy numbers for having been moved."""

    def spec(self) -> dict[str, Any]:
        """Return the parameters as JSON-able data; `noise_from_spec` rebuilds the noise from them."""
        return {"noise": self.kind, **asdict(self)}

    @property
    def digest(self) -> str:
        """SHA-256 of the distribution; δ is a claim about the draw, not part of it."""
        drawn = {name: value for name, value in self.spec().items() if name != "delta"}
        return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class DiscreteGaussian(StatisticNoise):
    """`P(y) ∝ e^{-y²/(2σ²)}` over the integers, with an integer σ², the `variance`.

    Guarantee: `Δ²/(2σ²)`-zCDP for a statistic of any width that moves by at most Δ in the 2-norm (Canonne, Kamath and
    Steinke 2020, Theorem 4). For a coordinate that moves by d the Rényi divergence is `αd²/(2σ²) + ln(r)/(α-1)` with
    `r = Σ_n e^{-(n-αd)²/(2σ²)} / Σ_n e^{-n²/(2σ²)}`, which is at most 1 by Poisson summation; independent coordinates
    add up. The ε at `delta` follows from ρ, or for wide noise from the analytic Gaussian mechanism, which gives less.
    """

    variance: int
    delta: float
    kind: ClassVar[str] = "gaussian"
    norm: ClassVar[Norm] = "l2"
    gamma_shape: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        _check_parameter("the variance of Gaussian noise", self.variance, MAX_VARIANCE)
        check_delta(self.delta)

    @property
    def deviation(self) -> float:
        """σ, that of the continuous normal distribution; the discrete one has slightly less."""
        return math.sqrt(self.variance)

    def sample(self, count: int, words: RandomWords) -> Integers:
        """Draw the noise of `count` coordinates, exactly."""
        return discrete_gaussian(self.variance, count, words)

    def cost(self, bound: int, classes: int) -> Cost:
        """Return ρ and, at δ, ε. With k > 2 classes q_i moves between two vectors: `Δ² = 2·bound²`."""
        moved = self.moved(bound, classes)
        exact, rho = epsilon_of_gaussian(self.delta, moved, self.variance), Fraction(moved, 2 * self.variance)
        return Cost(min(exact, epsilon_of_rho(rho, self.delta)), self.delta, rho)

    def keeps(self, epsilon: float, bound: int, classes: int, releases: int = 1) -> bool:
        """Say whether δ is kept at this ε; of several releases by the sum of their ρ."""
        moved = self.moved(bound, classes)
        rho = Fraction(releases * moved, 2 * self.variance)
        if epsilon_of_rho(rho, releases * Fraction(self.delta)) <= epsilon:
            return True
        return releases == 1 and delta_of_gaussian(epsilon, moved, self.variance) <= self.delta

    def moved(self, bound: int, classes: int) -> int:
        """Return Δ², the square of how far a label moves the statistic."""
        return check_bound(bound) ** 2 * (1 if check_classes(classes) == 2 else 2)

    def log_ratio(self, noisy: Integers | Floats, moved: int | Integers | Floats) -> Floats:
        """Return `moved·(2t - moved)/(2σ²)` of each number t."""
        return moved * (2 * noisy.astype(np.float64) - moved) / (2 * self.variance)

    def __str__(self) -> str:
        return f"discrete Gaussian noise, σ = {self.deviation:.6g}"


@dataclass(frozen=True)
class DiscreteLaplace(StatisticNoise):
    """`P(y) ∝ e^{-|y|/scale}` over the integers.

    Guarantee: pure ε = `Δ/scale` for a statistic that moves by at most Δ in the 1-norm: by the triangle inequality the
    ratio of probabilities is at most `Π_j e^{|d_j|/scale}`.
    """

    scale: int
    kind: ClassVar[str] = "laplace"
    norm: ClassVar[Norm] = "l1"
    gamma_shape: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _check_parameter("the scale of Laplace noise", self.scale, MAX_SCALE)

    @property
    def deviation(self) -> float:
        """The square root of `2r/(1-r)²` with `r = e^{-1/scale}`."""
        return math.sqrt(2) / (2 * math.sinh(0.5 / self.scale))

    def sample(self, count: int, words: RandomWords) -> Integers:
        """Draw the noise of `count` coordinates, exactly."""
        return discrete_laplace(self.scale, count, words)

    def cost(self, bound: int, classes: int) -> Cost:
        """Return ε. With k > 2 classes q_i moves between two vectors: `Δ = 2·bound`."""
        moved = check_bound(bound) * (1 if check_classes(classes) == 2 else 2)
        return Cost(float_above(Fraction(moved, self.scale)))

    def log_ratio(self, noisy: Integers | Floats, moved: int | Integers | Floats) -> Floats:
        """Return `(|t| - |t - moved|)/scale` of each number t."""
        return np.asarray((np.abs(noisy) - np.abs(noisy - moved)) / self.scale)

    def __str__(self) -> str:
        return f"discrete Laplace noise, scale {self.scale:,}"


@dataclass(frozen=True)
class NoNoise(StatisticNoise):
    """The statistic itself: not private (ε = ∞). It lets experiments without noise run the same code."""

    kind: ClassVar[str] = "none"
    norm: ClassVar[Norm] = "l2"
    gamma_shape: ClassVar[float] = 0.0

    @property
    def deviation(self) -> float:
        """Zero."""
        return 0.0

    def sample(self, count: int, words: RandomWords) -> Integers:
        """Return zeros."""
        return np.zeros(count, np.int64)

    def cost(self, bound: int, classes: int) -> Cost:
        """Return ε = ∞."""
        return Cost(math.inf)

    def log_ratio(self, noisy: Integers | Floats, moved: int | Integers | Floats) -> Floats:
        """Return certainty: +∞ for what was moved, -∞ for what was not."""
        return np.where(noisy == moved, np.inf, -np.inf)

    def __str__(self) -> str:
        return "no noise"


_KINDS: dict[str, Callable[..., StatisticNoise]] = {
    noise.kind: noise for noise in (DiscreteGaussian, DiscreteLaplace, NoNoise)
}


def noise_from_spec(spec: Mapping[str, Any]) -> StatisticNoise:
    """Rebuild noise from its `spec()`; an unknown kind is refused, never guessed."""
    parameters = dict(spec)
    kind = parameters.pop("noise", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"unknown noise for a statistic {kind!r}; known are {', '.join(_KINDS)}")
    try:
        return _KINDS[kind](**parameters)
    except TypeError as error:
        raise ValueError(
            f"{kind} noise for a statistic does not take these parameters: {sorted(parameters)}"
        ) from error


def fit_noise(kind: str, epsilon: float, delta: float, bound: int, classes: int, releases: int = 1) -> StatisticNoise:
    """Return the least noise whose exact cost is at most (ε, δ).

    The parameters are integers, so the cost is a little below ε: above 0.999·ε for every bound of at least 1000·ε.

    Args:
        kind: "gaussian" or "laplace".
        epsilon: of all releases together.
        delta: of all releases together; Laplace noise does not use it.
        bound: on the norm of the rows.
        classes: two, or k, which need more noise.
        releases: how many there will be, each with this noise and an equal part of δ.

    Raises:
        ValueError: the kind is unknown, or no noise of the largest parameter is enough.
    """
    epsilon = check_epsilon(epsilon)
    return least_noise(
        kind, epsilon, delta / releases, bound, lambda noise: noise.keeps(epsilon, bound, classes, releases)
    )


def least_noise(
    kind: str, epsilon: float, delta: float, bound: int, keeps: Callable[[StatisticNoise], bool]
) -> StatisticNoise:
    """Return the least noise of a kind that keeps ε, by bisection: more noise never keeps it less."""
    kinds: dict[str, tuple[Callable[[int], StatisticNoise], int]] = {
        "gaussian": (partial(DiscreteGaussian, delta=delta), MAX_VARIANCE),
        "laplace": (DiscreteLaplace, MAX_SCALE),
    }
    if kind not in kinds:
        raise ValueError(f"unknown noise for a statistic {kind!r}; known are {', '.join(kinds)}")
    make, enough = kinds[kind]
    if not keeps(make(enough)):
        raise ValueError(f"no noise fits ε = {rounded_up(epsilon)} with a bound of {bound:,}: use a smaller bound")
    too_little = 0
    while enough - too_little > 1:
        middle = (too_little + enough) // 2
        if keeps(make(middle)):
            enough = middle
        else:
            too_little = middle
    return make(enough)


def _check_parameter(name: str, value: object, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise ValueError(f"{name} must be an integer from 1 to 2^{largest.bit_length() - 1}, got {value!r}")
