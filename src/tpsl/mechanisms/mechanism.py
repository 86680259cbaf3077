"""The mechanism and its release: what turns a true label into a noisy label.

By section 3.2 of the paper, `GradPerturb(y, g_0, g_1) = (1-t)·g_0 + t·g_1` with `t = y + u(1-2y)`: the perturbed
gradient is a linear map of the *noisy label* t, and t alone carries the guarantee. A mechanism draws t; all later
computation is post-processing.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.exact import rounded_up
from tpsl.mechanisms.random_words import RandomWords, Words, secure_words, seeded_words

Outcomes = npt.NDArray[np.unsignedinteger]
Labels = npt.NDArray[np.intp]
Estimator = Literal["linear", "unbiased", "posterior"]
"""How a noisy label becomes a gradient: `tpsl.perturb`."""

_WORDS_AT_ONCE = 1 << 17
MIN_EPSILON, MAX_EPSILON = 1e-3, 40.0
"""The ε that tables of 64-bit integers represent well; outside it a mechanism is refused, never approximated."""


@dataclass(frozen=True, eq=False)
class Mechanism(abc.ABC):
    """A label-DP mechanism with finitely many outcomes, each with a known integer probability.

    Guarantee: `release` is (`epsilon`, `delta`)-differentially private in each label. `epsilon` is computed from the
    integers that are sampled, rounded up, and never above the ε that was asked for.
    """

    classes: int
    epsilon: float
    delta: float
    parameters: Mapping[str, float]
    """What was asked for, beside the number of classes."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name on the command line and in job files; the paper's, where the paper has one."""

    def spec(self) -> dict[str, Any]:
        """Return the parameters as JSON-able data; `from_spec` rebuilds the mechanism from them."""
        return {"mechanism": self.name, **self.parameters, "classes": self.classes}

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """SHA-256 over the integers and values that define the mechanism."""

    @property
    @abc.abstractmethod
    def values(self) -> npt.NDArray[np.float64]:
        """The value `t_o` of each outcome: a number for two classes (or for one coordinate), a vector for k."""

    @property
    @abc.abstractmethod
    def weights(self) -> npt.NDArray[Any]:
        """The integers `W[y][o]`, each row summing to 2^64. With coordinates: one coordinate's rows (other, own).

        Subset selection has one row: what it draws depends on the label by one bit alone.
        """

    @property
    def outcomes(self) -> int:
        """The number of outcomes of one draw."""
        return int(self.weights.shape[1])

    @property
    def outcome_shape(self) -> tuple[int, ...]:
        """The shape of one record's outcome: `()`, or `(k,)` where each class has a coordinate of its own."""
        return ()

    @property
    def outcome_dtype(self) -> np.dtype[np.unsignedinteger]:
        """The smallest unsigned integer type that holds an outcome."""
        return np.dtype(np.min_scalar_type(self.outcomes - 1))

    @abc.abstractmethod
    def mean(self, y: int) -> Any:
        """Return `E[t | y]`: a number for two classes, a vector for k."""

    @abc.abstractmethod
    def variance(self, y: int) -> Any:
        """Return `Var[t | y]`, coordinate by coordinate."""

    @abc.abstractmethod
    def log_likelihood(self, outcomes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return `ln P(outcome | y = j)` in column j, one row for each record."""

    def noisy(self, outcomes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the noisy labels t of outcomes: shape `[n]` for two classes, `[n, k]` for k."""
        noisy: npt.NDArray[np.float64] = self.values[np.asarray(outcomes)]
        return noisy

    @property
    def unbiased_values(self) -> npt.NDArray[np.float64]:
        """The values `(t_o - μ_other) / (μ_own - μ_other)`, whose mean is the label or its unit vector.

        Here E[t] is one number on the coordinate of the true class and another on all others.
        """
        own, other = (np.ravel(self.mean(y))[-1] for y in (self.classes - 1, 0))
        unbiased: npt.NDArray[np.float64] = (self.values - other) / (own - other)
        return unbiased

    @abc.abstractmethod
    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        """Turn labels and uniform words (one for each coordinate) into outcomes."""

    def _words(self, stream: RandomWords, records: int) -> Words:
        """Return the words for the next records, taken from the stream without a look at any label."""
        return stream.words(records * math.prod(self.outcome_shape))

    def release(self, labels: npt.ArrayLike, rng: RandomWords | int | None = None) -> Release:
        """Draw one outcome for each label.

        `rng=None` draws from AES-256-CTR under a key from the operating system. An integer is a seed: the release can
        then be repeated by anyone who knows it, and says of itself that it is not private.
        """
        stream = secure_words() if rng is None else rng if isinstance(rng, RandomWords) else seeded_words(rng)
        checked = check_labels(labels, self.classes)
        outcomes = np.empty((len(checked), *self.outcome_shape), dtype=self.outcome_dtype)
        chunk = max(1, _WORDS_AT_ONCE // math.prod(self.outcome_shape))
        for start in range(0, len(checked), chunk):
            part = checked[start : start + chunk]
            outcomes[start : start + chunk] = self._draw(part, self._words(stream, len(part)))
        outcomes.flags.writeable = False
        return Release(self, outcomes, private=stream.secure and math.isfinite(self.epsilon))

    def __str__(self) -> str:
        guarantee = f"ε = {rounded_up(self.epsilon)}" + (f", δ = {rounded_up(self.delta)}" if self.delta else "")
        return f"{self.name} ({guarantee}" + (f", {self.classes} classes)" if self.classes > 2 else ")")


@dataclass(frozen=True, eq=False)
class Release:
    """The outcomes of one draw for each label, and whether they are private."""

    mechanism: Mechanism
    outcomes: Outcomes
    private: bool

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def noisy(self) -> npt.NDArray[np.float64]:
        """The noisy labels t."""
        return self.mechanism.noisy(self.outcomes)

    def __str__(self) -> str:
        cause = "no noise" if math.isinf(self.mechanism.epsilon) else "seeded noise"
        warning = "" if self.private else f" — NOT PRIVATE ({cause})"
        return f"release of {len(self)} labels by {self.mechanism}{warning}"

    __repr__ = __str__


def check_labels(labels: npt.ArrayLike, classes: int) -> npt.NDArray[Any]:
    """Return the labels as integers from 0 to classes - 1, or raise a ValueError naming the first that is not one."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"labels must be one-dimensional, got shape {array.shape}")
    if array.size == 0:
        return array.astype(np.uint8)
    if array.dtype.kind == "f":
        bad = ~(np.isfinite(array) & (array == np.floor(array)))
        if bad.any():
            position = int(bad.argmax())
            raise ValueError(
                f"label {array[position]} at position {position} is not an integer from 0 to {classes - 1}"
            )
    elif array.dtype.kind not in "iub":
        values = array.tolist()
        position = next((i for i, value in enumerate(values) if not isinstance(value, int)), 0)
        raise ValueError(f"labels must be integers, got {array.dtype}: {values[position]!r} at position {position}")
    if array.min() < 0 or array.max() >= classes:
        position = int(((array < 0) | (array >= classes)).argmax())
        raise ValueError(f"label {array[position]} at position {position} is not an integer from 0 to {classes - 1}")
    return array.astype(np.min_scalar_type(classes - 1), copy=False)


def check_epsilon(epsilon: float) -> float:
    """Return ε as a float, or raise a ValueError that says what is wrong with it."""
    value = _number(epsilon, "epsilon")
    if not value > 0:
        raise ValueError(f"epsilon must be a positive number, got {epsilon!r}")
    if value < MIN_EPSILON:
        raise ValueError(f"epsilon {epsilon!r} is too small to represent: the smallest is {MIN_EPSILON}")
    if value > MAX_EPSILON:
        raise ValueError(
            f"epsilon {epsilon!r} is too large to represent: the largest is {MAX_EPSILON:g}; for no noise use 'none'"
        )
    return value


def check_classes(classes: int) -> int:
    """Return the number of classes, or raise a ValueError."""
    if isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 2:
        raise ValueError(f"the number of classes must be an integer of at least 2, got {classes!r}")
    return int(classes)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)


def check_sigma(sigma: float) -> float:
    """Return σ as a float, or raise a ValueError that says what is wrong with it."""
    return _within(sigma, "sigma", 0.01, 1000.0)


def check_delta(delta: float) -> float:
    """Return δ as a float, or raise a ValueError that says what is wrong with it."""
    return _within(delta, "delta", 0.0, 0.5)


def _within(value: object, name: str, low: float, high: float) -> float:
    number = _number(value, name)
    if not low < number <= high:
        raise ValueError(f"{name} must be above {low:g} and at most {high:g}, got {value!r}")
    return number
