"""The mechanism and its release: true label → noisy label t.

The paper's `GradPerturb` (Algorithm 2) returns `g_y + u·(g_{1-y} - g_y)`. With `t = y + u(1-2y)` this is
`(1-t)·g_0 + t·g_1`: a linear map of the *noisy label* t, and t alone carries the guarantee. With k classes
(Algorithm 4) t is the vector `e_y + u`, and the result `Σ_j t_j g_j`. A mechanism draws t; all else is post-processing.
"""

from __future__ import annotations

import abc
import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.exact import rounded_up
from tpsl.mechanisms.sampling import RandomWords, Words, secure_words, seeded_words

Floats = npt.NDArray[np.float64]
Outcomes = npt.NDArray[np.unsignedinteger]
Labels = npt.NDArray[np.unsignedinteger]
Estimator = Literal["linear", "unbiased", "posterior"]
"""How a noisy label becomes a gradient: `tpsl.perturb`."""

MIN_EPSILON, MAX_EPSILON = 1e-3, 40.0
"""The ε that tables of 64-bit integers represent well; outside it a mechanism is refused, never approximated."""

_WORDS_AT_ONCE = 1 << 17


@dataclass(frozen=True, eq=False)
class Mechanism(abc.ABC):
    """A label-DP mechanism with finitely many outcomes, each with a known integer probability.

    Guarantee: `release` is (`epsilon`, `delta`)-differentially private in each label. `epsilon` is computed from the
    integers that are sampled, rounded up, and never above the ε that was asked for.

    A subclass defines its abstract members and nothing else; one line in `mechanism_registry` gives it its name.
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

    @property
    @abc.abstractmethod
    def _definition(self) -> str:
        """A text that contains every integer and value that defines the draw; δ is a claim about it, not part of it."""

    @property
    @abc.abstractmethod
    def values(self) -> Floats:
        """The value `t_o` of each outcome: a number for two classes (or for one coordinate), a vector for k."""

    @property
    @abc.abstractmethod
    def weights(self) -> npt.NDArray[np.generic]:
        """The integers `W[y][o]`, each row summing to 2^64. With coordinates: one coordinate's rows (other, own).

        Subset selection has one row: what it draws depends on the label by one bit alone.
        """

    @property
    @abc.abstractmethod
    def coordinate(self) -> Floats | None:
        """The probabilities of what an outcome shows at one class; rows: another class is the label, this one is.

        Of two classes it is class 1, and the rows mirror each other. An outcome that names a class shows 1 at that one
        and 0 elsewhere. None where classes are not treated alike.
        """

    @abc.abstractmethod
    def pairs(self) -> Iterable[tuple[Floats, Floats]] | None:
        """Return, for pairs of classes (a, b), the probabilities of what an outcome says about the two, under a and b.

        One pair stands for all where classes are treated alike. None if an outcome has an independent `coordinate` for
        each class: those of a and b say all.
        """

    @abc.abstractmethod
    def mean(self, y: int) -> Floats:
        """Return `E[t | y]`, of shape `[]` for two classes and `[k]` for k."""

    @abc.abstractmethod
    def variance(self, y: int) -> Floats:
        """Return `Var[t | y]`, coordinate by coordinate."""

    @abc.abstractmethod
    def log_likelihood(self, outcomes: npt.ArrayLike) -> Floats:
        """Return `ln P(outcome | y = j)` in column j, one row for each record."""

    @abc.abstractmethod
    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        """Turn labels and uniform words (one for each coordinate) into outcomes."""

    def _words(self, stream: RandomWords, records: int) -> Words:
        """Return the words for the next records, taken from the stream independently of any label."""
        return stream.words(records * math.prod(self.outcome_shape))

    @property
    def digest(self) -> str:
        """SHA-256 of the definition: two mechanisms with this digest draw alike."""
        return hashlib.sha256(self._definition.encode()).hexdigest()

    def spec(self) -> dict[str, Any]:
        """Return the parameters as JSON-able data; `from_spec` rebuilds the mechanism from them."""
        return {"mechanism": self.name, **self.parameters, "classes": self.classes}

    @property
    def outcomes(self) -> int:
        """The number of outcomes of one draw."""
        return int(self.weights.shape[1])

    @property
    def outcome_shape(self) -> tuple[int, ...]:
        """The shape of one record's outcome: `()`, or `(k,)` where each class has a coordinate."""
        return ()

    @property
    def outcome_dtype(self) -> np.dtype[np.unsignedinteger]:
        """The smallest unsigned integer type that holds an outcome."""
        return np.dtype(np.min_scalar_type(self.outcomes - 1))

    def noisy(self, outcomes: npt.ArrayLike) -> Floats:
        """Return the noisy labels t of outcomes: shape `[n]` for two classes, `[n, k]` for k."""
        return np.asarray(self.values[np.asarray(outcomes)])

    @property
    def unbiased_values(self) -> Floats:
        """The values `(t_o - μ_other) / (μ_own - μ_other)`, whose mean is the label or its unit vector.

        `E[t]` is μ_own at the coordinate of the true class and μ_other at all others.
        """
        own, other = (np.ravel(self.mean(y))[-1] for y in (self.classes - 1, 0))
        return np.asarray((self.values - other) / (own - other))

    def release(self, labels: npt.ArrayLike, rng: RandomWords | int | None = None) -> Release:
        """Draw one outcome for each label.

        Args:
            labels: integers from 0 to k - 1.
            rng: None draws from AES-256-CTR under a key from the operating system. An integer is a seed: whoever knows
                it can repeat the release, which therefore says that it is not private.

        Raises:
            ValueError: a label is not a class; the message names the first and its position.
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

    def _by_class(self, y: int, other: float, own: float) -> Floats:
        """Return a moment of t given y from that of a coordinate that is another class's, and of the label's own."""
        if self.classes == 2:
            return np.asarray(own if y == 1 else other)
        return np.where(np.arange(self.classes) == y, own, other)


@dataclass(frozen=True, eq=False)
class Release:
    """The outcomes of one draw for each label, and whether they are private."""

    mechanism: Mechanism
    outcomes: Outcomes
    private: bool

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def noisy(self) -> Floats:
        """The noisy labels t."""
        return self.mechanism.noisy(self.outcomes)

    def __str__(self) -> str:
        cause = "no noise" if math.isinf(self.mechanism.epsilon) else "seeded noise"
        warning = "" if self.private else f" — NOT PRIVATE ({cause})"
        return f"release of {len(self)} labels by {self.mechanism}{warning}"

    __repr__ = __str__


def votes(own: float, other: float) -> list[tuple[Floats, Floats]]:
    """Return the one of `pairs` for outcomes that name the true class, the other one, or neither of the two."""
    under_own = np.array([own, 1.0 - own - other, other])
    return [(under_own, under_own[::-1])]


def check_labels(labels: npt.ArrayLike, classes: int) -> Labels:
    """Return the labels as integers from 0 to classes - 1, or raise a ValueError naming the first that is not one."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"labels must be one-dimensional, got shape {array.shape}")
    if array.size == 0:
        return array.astype(np.uint8)
    if array.dtype.kind not in "iubf":
        values = array.tolist()
        position = next((i for i, value in enumerate(values) if not isinstance(value, int)), 0)
        raise ValueError(f"labels must be integers, got {array.dtype}: {values[position]!r} at position {position}")
    bad = ~(np.isfinite(array) & (array == np.floor(array))) if array.dtype.kind == "f" else np.zeros(1, np.bool_)
    if not bad.any():
        if array.min() >= 0 and array.max() < classes:
            return array.astype(np.min_scalar_type(classes - 1), copy=False)
        bad = (array < 0) | (array >= classes)
    position = int(bad.argmax())
    raise ValueError(f"label {array[position]} at position {position} is not an integer from 0 to {classes - 1}")


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


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)
