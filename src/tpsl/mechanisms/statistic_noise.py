"""Noise for a statistic: integers added to `T = Σ_i y_i q_i`, where the q_i are integer vectors of bounded norm.

A label that changes moves T by q_i (two classes), or moves q_i from one of k vectors to another. So the noise that T
needs follows from the bound on the norm of the q_i alone, whoever chose them and however: `tpsl.mechanisms.quantise`
enforces the bound in integers. What is added are exact integers too, so the cost is that of the numbers released, not
of a formula that they approximate. Sums in 64 bits that overflow wrap around, which is post-processing.

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

from tpsl.mechanisms import exact_sampling
from tpsl.mechanisms.cost import Cost, compose, epsilon_of_rho
from tpsl.mechanisms.exact import float_above, rounded_up
from tpsl.mechanisms.exact_sampling import MAX_SCALE, MAX_VARIANCE, Integers
from tpsl.mechanisms.gaussian_tradeoff import delta_of_gaussian, epsilon_of_gaussian
from tpsl.mechanisms.mechanism import check_classes, check_delta, check_epsilon
from tpsl.mechanisms.quantise import Norm, check_bound
from tpsl.mechanisms.random_words import RandomWords

NoiseKind = Literal["gaussian", "laplace", "none"]


@dataclass(frozen=True)
class StatisticNoise(abc.ABC):
    """Independent integer noise for each coordinate of a statistic."""

    kind: ClassVar[NoiseKind]
    norm: ClassVar[Norm]
    """The norm whose bound on the q_i the cost rests on."""

    @property
    @abc.abstractmethod
    def deviation(self) -> float:
        """The standard deviation of the noise of one coordinate."""

    @abc.abstractmethod
    def sample(self, count: int, words: RandomWords) -> Integers:
        """Draw the noise of `count` coordinates."""

    @abc.abstractmethod
    def cost(self, bound: int, classes: int) -> Cost:
        """Return what one release costs each label if no q_i has a norm above `bound`, in any number of dimensions."""

    def keeps(self, epsilon: float, bound: int, classes: int, releases: int = 1) -> bool:
        """Say whether the ε of a release, or of several together, is at most this."""
        return compose([self.cost(bound, classes)] * releases).epsilon <= epsilon

    @abc.abstractmethod
    def log_ratio(self, noisy: Integers, moved: int | Integers) -> npt.NDArray[np.float64]:
        """Return `ln P(noisy - moved) / P(noisy)`: what numbers with noise say for having been moved, against not."""

    def spec(self) -> dict[str, Any]:
        """Return the parameters as JSON-able data; `noise_from_spec` rebuilds the noise from them."""
        return {"noise": self.kind, **asdict(self)}

    @property
    def digest(self) -> str:
        """SHA-256 of what is drawn; δ is a claim about the draw, no part of it."""
        drawn = {name: value for name, value in self.spec().items() if name != "delta"}
        return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class DiscreteGaussian(StatisticNoise):
    """`P(y) ∝ e^{-y²/(2σ²)}` over the integers, with an integer σ², the `variance`.

    Guarantee: `Δ²/(2σ²)`-zCDP in any number of dimensions for a statistic that moves by at most Δ in the 2-norm
    (Canonne, Kamath and Steinke 2020, Theorem 4; the ρ of independent coordinates add up). The ε at `delta` is what
    follows from ρ, or for wide noise the smaller one of the analytic Gaussian mechanism.
    """

    variance: int
    delta: float
    kind: ClassVar[NoiseKind] = "gaussian"
    norm: ClassVar[Norm] = "l2"

    def __post_init__(self) -> None:
        _check_parameter("the variance of Gaussian noise", self.variance, MAX_VARIANCE)
        check_delta(self.delta)

    @property
    def deviation(self) -> float:
        """σ: that of the continuous normal distribution, which the discrete one is below by a trifle."""
        return math.sqrt(self.variance)

    def sample(self, count: int, words: RandomWords) -> Integers:
        """Draw the noise of `count` coordinates, exactly."""
        return exact_sampling.discrete_gaussian(self.variance, count, words)

    def cost(self, bound: int, classes: int) -> Cost:
        """Return ρ and, at δ, ε. With k > 2 classes q_i moves between two vectors: `Δ² = 2·bound²`."""
        moved, rho = self._moved(bound, classes)
        exact = epsilon_of_gaussian(self.delta, moved, self.variance)
        return Cost(min(exact, epsilon_of_rho(rho, self.delta)), self.delta, rho)

    def keeps(self, epsilon: float, bound: int, classes: int, releases: int = 1) -> bool:
        """Say whether δ is kept at this ε; of several releases by the sum of their ρ."""
        moved, rho = self._moved(bound, classes)
        if epsilon_of_rho(releases * rho, releases * Fraction(self.delta)) <= epsilon:
            return True
        return releases == 1 and delta_of_gaussian(epsilon, moved, self.variance) <= self.delta

    def _moved(self, bound: int, classes: int) -> tuple[int, Fraction]:
        """Return Δ² and ρ."""
        moved = check_bound(bound) ** 2 * (1 if check_classes(classes) == 2 else 2)
        return moved, Fraction(moved, 2 * self.variance)

    def log_ratio(self, noisy: Integers, moved: int | Integers) -> npt.NDArray[np.float64]:
        """Return `moved·(2t - moved)/(2σ²)` of each number t."""
        return moved * (2 * noisy.astype(np.float64) - moved) / (2 * self.variance)

    def __str__(self) -> str:
        return f"discrete Gaussian noise, σ = {self.deviation:.6g}"


@dataclass(frozen=True)
class DiscreteLaplace(StatisticNoise):
    """`P(y) ∝ e^{-|y|/scale}` over the integers.

    Guarantee: pure ε = `Δ/scale` for a statistic that moves by at most Δ in the 1-norm.
    """

    scale: int
    kind: ClassVar[NoiseKind] = "laplace"
    norm: ClassVar[Norm] = "l1"

    def __post_init__(self) -> None:
        _check_parameter("the scale of Laplace noise", self.scale, MAX_SCALE)

    @property
    def deviation(self) -> float:
        """The square root of `2r/(1-r)²` with `r = e^{-1/scale}`."""
        return math.sqrt(2) / (2 * math.sinh(0.5 / self.scale))

    def sample(self, count: int, words: RandomWords) -> Integers:
        """Draw the noise of `count` coordinates, exactly."""
        return exact_sampling.discrete_laplace(self.scale, count, words)

    def cost(self, bound: int, classes: int) -> Cost:
        """Return ε. With k > 2 classes q_i moves between two vectors: `Δ = 2·bound`."""
        moved = check_bound(bound) * (1 if check_classes(classes) == 2 else 2)
        return Cost(float_above(Fraction(moved, self.scale)))

    def log_ratio(self, noisy: Integers, moved: int | Integers) -> npt.NDArray[np.float64]:
        """Return `(|t| - |t - moved|)/scale` of each number t."""
        ratio: npt.NDArray[np.float64] = (np.abs(noisy) - np.abs(noisy - moved)) / self.scale
        return ratio

    def __str__(self) -> str:
        return f"discrete Laplace noise, scale {self.scale:,}"


@dataclass(frozen=True)
class NoNoise(StatisticNoise):
    """The statistic itself: not private (ε = ∞). It is here so that experiments without noise run the same code."""

    kind: ClassVar[NoiseKind] = "none"
    norm: ClassVar[Norm] = "l2"

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

    def log_ratio(self, noisy: Integers, moved: int | Integers) -> npt.NDArray[np.float64]:
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
    """Return the least noise of this kind whose exact cost is at most (ε, δ); `delta` is for Gaussian noise alone.

    That is the cost of this number of `releases` together, each with such noise and an equal part of δ.
    The parameters are integers, so the cost is a little below ε: above 0.999·ε for every bound of at least 1000·ε.
    """
    epsilon = check_epsilon(epsilon)

    def keeps(noise: StatisticNoise) -> bool:
        return noise.keeps(epsilon, bound, classes, releases)

    if kind == "gaussian":
        found = _least(partial(DiscreteGaussian, delta=delta / releases), MAX_VARIANCE, keeps)
    elif kind == "laplace":
        found = _least(DiscreteLaplace, MAX_SCALE, keeps)
    else:
        raise ValueError(f"unknown noise for a statistic {kind!r}; known are gaussian, laplace")
    if found is None:
        raise ValueError(f"no noise fits ε = {rounded_up(epsilon)} with a bound of {bound:,}: use a smaller bound")
    return found


def _least(
    make: Callable[[int], StatisticNoise], largest: int, keeps: Callable[[StatisticNoise], bool]
) -> StatisticNoise | None:
    """Return the noise with the least parameter up to the largest that keeps what it should, by bisection."""
    too_little, enough = 0, largest
    if not keeps(make(enough)):
        return None
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
