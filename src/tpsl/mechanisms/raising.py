"""Raising ε later costs the difference, not the sum: a further draw that is correlated with the first.

A label was released as o₁ by a mechanism with the table W₁; now randomised response W₂ at a larger ε is wanted. Where
`W₁ = W₂ C` for a stochastic matrix C, o₁ is distributed as if o₂ had been drawn first and then been garbled by C. So
o₂ is drawn from `P(o₂ | o₁, y) = W₂[y][o₂] C[o₂][o₁] / W₁[y][o₁]`: the pair has the distribution of "o₂, then o₁ from
o₂ alone", and together they say of y what o₂ says. (Gradual release: Koufogiannis, Han and Pappas 2015.) For two
classes every pure mechanism of a smaller ε can be raised, for k randomised response. Proof: docs/mathematics.md,
Theorem 7.

What is claimed is computed from the integers that are sampled: the largest ratio of the probabilities of all that was
released, over every history of outcomes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.base import Labels, Mechanism, Outcomes, Release, check_epsilon, check_labels
from tpsl.mechanisms.discrete import RandomizedResponse, randomized_response
from tpsl.mechanisms.exact import exp_lower, log_upper
from tpsl.mechanisms.integer_table import TOTAL
from tpsl.mechanisms.sampling import RandomWords, Words, secure_words, seeded_words

MAX_CLASSES = 128
"""The table of a raise has k³ integers."""

_REPRESENTATIVES = 4
"""Of k classes that are treated alike: two labels, and two outcomes that are neither."""


@dataclass(frozen=True, eq=False)
class Raise:
    """A further draw for labels that were released before, at a larger ε.

    Guarantee: the earlier outcomes and the new one together are (`epsilon`, 0)-differentially private in each label.
    The new outcome alone is that of `mechanism`, to 2^-60, and says all that both say: earlier ones can be forgotten.
    """

    first: Mechanism | Raise
    mechanism: RandomizedResponse
    weights: Words
    """`P(o₂ | y, o₁) = weights[y, o₁, o₂] / 2^64`."""

    @cached_property
    def epsilon(self) -> float:
        """The ε of all outcomes together, from the integers, rounded up."""
        return log_upper(self.largest_ratio)

    @property
    def largest_ratio(self) -> Fraction:
        """The largest ratio of the probabilities of one history of outcomes under two labels, exactly: e^ε."""
        return max(max(ratios) for ratios in self.ratios.values())

    @cached_property
    def ratios(self) -> dict[tuple[int, int], list[Fraction]]:
        """For ordered pairs of labels and each newest outcome: the largest ratio over all earlier outcomes."""
        found = {}
        for pair, before in _ratios_of(self.first).items():
            own, other = (self.weights[y, :, :_REPRESENTATIVES].tolist() for y in pair)
            found[pair] = [
                max(ratio * Fraction(own[o][new], other[o][new]) for o, ratio in enumerate(before))
                for new in range(len(own[0]))
            ]
        return found

    def release(self, earlier: Outcomes, labels: npt.ArrayLike, rng: RandomWords | int | None = None) -> Release:
        """Draw the new outcome of each label, given its earlier one; for `rng` see `Mechanism.release`."""
        stream = secure_words() if rng is None else rng if isinstance(rng, RandomWords) else seeded_words(rng)
        checked = check_labels(labels, self.mechanism.classes)
        if earlier.shape != checked.shape or (len(earlier) and earlier.max() >= self.weights.shape[1]):
            raise ValueError("the earlier outcomes are not those of these labels")
        outcomes = self.draw(checked, earlier, stream.words(len(checked))).astype(self.mechanism.outcome_dtype)
        outcomes.flags.writeable = False
        return Release(self.mechanism, outcomes, private=stream.secure)

    def draw(self, labels: Labels, earlier: Outcomes, words: Words) -> npt.NDArray[np.intp]:
        """Turn each word into the first outcome whose cumulative weight exceeds it, all rows bisected at once."""
        outcomes = self._boundaries.shape[1] + 1
        rows = labels.astype(np.intp) * self.weights.shape[1] + earlier
        low, high = np.zeros(len(rows), np.intp), np.full(len(rows), outcomes - 1)
        for _ in range(math.ceil(math.log2(outcomes))):
            middle = (low + high) // 2
            beyond = (low < high) & (self._boundaries[rows, np.minimum(middle, outcomes - 2)] <= words)
            low, high = np.where(beyond, middle + 1, low), np.where(beyond, high, middle)
        return low

    @cached_property
    def _boundaries(self) -> Words:
        rows = self.weights.reshape(-1, self.weights.shape[2])
        return np.cumsum(rows[:, :-1], axis=1, dtype=np.uint64)


def _ratios_of(first: Mechanism | Raise) -> dict[tuple[int, int], list[Fraction]]:
    """Return `P(o | y) / P(o | y')` of a first release; of k > 2 classes, treated alike, for the representatives."""
    if isinstance(first, Raise):
        return first.ratios
    own, other = first.weights[:2, : _REPRESENTATIVES if first.classes > 2 else None].tolist()
    ratios = [Fraction(a, b) for a, b in zip(own, other, strict=True)]
    return {(0, 1): ratios, (1, 0): [1 / ratio for ratio in ratios]}


def raised(first: Mechanism | Raise, epsilon: float) -> Raise:
    """Return the draw that raises a release to ε. Guarantee: the ε of all outcomes together is at most `epsilon`.

    Raises:
        ValueError: ε is not above that of the first release, or that release cannot be raised.
    """
    bound = exp_lower(check_epsilon(epsilon))
    if not first.epsilon < epsilon:
        raise ValueError(f"ε = {epsilon:g} does not raise a release of ε = {first.epsilon:g}")
    newest = first.mechanism if isinstance(first, Raise) else first
    if newest.delta or newest.outcome_shape or not (newest.classes == 2 or isinstance(newest, RandomizedResponse)):
        raise ValueError(f"a release by {newest} cannot be raised")
    if newest.classes > MAX_CLASSES:
        raise ValueError(f"a release of more than {MAX_CLASSES} classes cannot be raised")
    # Rounding may exceed the bound by as much as small integers are off; then a little less is drawn.
    for bits in range(44, 3, -4):
        less = epsilon - (epsilon - first.epsilon) * 2.0**-bits
        new = randomized_response(less, newest.classes)
        found = Raise(first, new, _weights(newest, new))
        if found.weights.all() and found.largest_ratio <= bound:
            return found
    raise ValueError(f"ε = {epsilon:g} is too near to the ε = {first.epsilon:g} of the release to be told in integers")


def _weights(first: Mechanism, new: RandomizedResponse) -> Words:
    """Return `2^64 P(o₂ | y, o₁)` in integers; rows of k > 2 classes depend only on which of y, o₁ and o₂ are equal."""
    rows, k = first.weights.tolist(), new.classes
    weights = np.empty((k, len(rows[0]), k), np.uint64)
    if k == 2:
        for o in range(len(rows[0])):
            first_column = [row[o] for row in rows]
            for y in (0, 1):
                moved = round(_conditional(first_column, new, y, 1 - y))
                weights[y, o, y], weights[y, o, 1 - y] = TOTAL - moved, moved
        return weights
    hit, miss = int(first.weights[0, 0]), int(first.weights[0, 1])
    same = [hit] + [miss] * (k - 1)  # the column of the outcome 0
    weights[:] = round(_conditional(same, new, 1, 2))
    other, label = np.arange(k)[:, None], np.arange(k)
    weights[other, label, label] = round(_conditional(same, new, 1, 0))
    weights[label, label] = round(_conditional(same, new, 0, 1))
    # The label itself takes what the others leave of 2^64.
    weights[label, :, label] = 0
    taken = np.array([[sum(row) for row in table] for table in weights.tolist()], dtype=object)
    weights[label, :, label] = (TOTAL - taken).astype(np.uint64)
    return weights


def _conditional(column: list[int], new: RandomizedResponse, y: int, outcome: int) -> Fraction:
    """Return `2^64 W₂[y][o₂] C[o₂][o₁] / W₁[y][o₁]`, where `column` is that of o₁ in W₁.

    `W₂ = (keep - flip) I + flip·(all ones)`, so `C[j][o] = (W₁[j][o] - flip·Σ_y W₁[y][o]) / (keep - flip)`.
    """
    weight = new.keep if outcome == y else new.flip
    garbled = Fraction(column[outcome] * TOTAL - new.flip * sum(column), new.keep - new.flip)
    return weight * garbled / column[y]
