"""The strongest reading of a gradient: the noisy label itself, and how likely it is under each true label.

Mechanism and estimator stand in the job, so the attacker knows them. Whatever the estimator, the gradient is a function
of the noisy label t (and of things the attacker knows), so `P(t | y)` is all that it says about the label. Scores that
depend on t alone have AUCs that the mechanism's table predicts.

With the estimators `linear` and `unbiased` the shortest-distance guess for two classes is `t > ½`, and has the
mechanism's closed form. With `posterior` the gradient lies at `σ(z + λ_t)` between g_0 and g_1, and its nearer end says
more about z than about t. An attacker who knows the estimator does not fall for that: it divides z out and asks whether
t, not g̃, is nearer to 1. So does `shortest_distance` here, whatever the estimator: it guesses 1 if `λ_t > 0`, which for
every mechanism is `t > ½`. Soft, the score is λ_t itself. What is read is snapped to the values that it can have: the
rounding of a distance depends on the features, and would decide between equal ones.

With k classes it is the same: of two classes the guess is the one under which t is likelier, and where t says nothing
about the two (a third class was drawn, say) the guess is a coin, as in the closed form. Only where t cannot be read
(estimator `linear` or `unbiased`, and noise on each coordinate, whose sum softmax hides) distances between gradients
are compared as they are. They mix in what the network makes of the features, so no closed form exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpsl.attacks.scoring import Scores
from tpsl.attacks.white_box import WhiteBox, sigmoid
from tpsl.mechanisms import Estimator, Mechanism
from tpsl.run.transcript import TranscriptStep

Floats = npt.NDArray[np.float64]

_LARGEST = 60.0
"""Stands for an infinite log-likelihood ratio, so that sums and differences of evidence stay numbers."""


@dataclass(frozen=True)
class LabelReading:
    """What one step says about the labels of its records."""

    evidence: Floats
    """As `Evidence` returns it."""
    readable: npt.NDArray[np.bool_]
    """False where nothing can be read, because the gradient would be the same for every noisy label.

    With k classes and noise on each coordinate, also where the cut moves the logits in fewer than k - 1 directions.
    """
    logits: Floats
    """What the label party's network predicts: `[n]` for two classes, `[n, k]` for k."""


class Evidence:
    """From what was seen in a step to the log-likelihood of each record's label.

    Two classes: `λ = ln P(t | 1) / P(t | 0)`, shape `[n]`, 0 where nothing can be read. It is snapped to the values
    that it can have; else rounding errors, which depend on the features, would decide between equal ones. k classes:
    `ln P(t | y = j)` up to a number of each record's own, shape `[n, k]`; all 0 where nothing can be read. Where
    several t explain the gradient, it is the probability of all of them.
    """

    def __init__(self, white_box: WhiteBox, mechanism: Mechanism, estimator: Estimator) -> None:
        self._white_box, self._mechanism, self._estimator = white_box, mechanism, estimator
        # Without noise w is the label itself under every estimator, however sure of another the network is.
        self._posterior = estimator == "posterior" and math.isfinite(mechanism.epsilon)
        self.exact = mechanism.classes == 2 or self._posterior or not mechanism.outcome_shape
        """False with k classes and noise on each coordinate: softmax hides the sum of it, which is taken as 0."""
        self._last: tuple[int, LabelReading] | None = None
        if not self._posterior:
            self._values = mechanism.unbiased_values if estimator == "unbiased" else mechanism.values
        if mechanism.classes == 2:
            likelihood = mechanism.log_likelihood(np.arange(mechanism.outcomes))
            self._ratios = np.clip(likelihood[:, 1] - likelihood[:, 0], -_LARGEST, _LARGEST).round(6)
            self._levels = np.unique(self._ratios)

    def __call__(self, seen: TranscriptStep) -> Floats:
        """Return the evidence of one step."""
        return self.read(seen).evidence

    def read(self, seen: TranscriptStep) -> LabelReading:
        """Read one step; attacks that look at the same step share the work."""
        if self._last is None or self._last[0] != seen.step:
            self._last = seen.step, self._read(seen)
        return self._last[1]

    def _read(self, seen: TranscriptStep) -> LabelReading:
        if self._mechanism.classes == 2:
            return self._of_two_classes(seen)
        return self._of_coordinates(seen) if self._mechanism.outcome_shape else self._of_outcomes(seen)

    def _of_two_classes(self, seen: TranscriptStep) -> LabelReading:
        reading = self._white_box.read(seen)
        if self._posterior:
            # w = σ(z) - ṽ = σ(z + λ); both w and 1 - w are computed as sums, so that neither loses its digits.
            yes = np.maximum(sigmoid(reading.logits) - reading.received, 1e-30)
            no = np.maximum(sigmoid(-reading.logits) + reading.received, 1e-30)
            found = self._levels[_nearest(self._levels, np.log(yes) - np.log(no) - reading.logits)]
        else:
            order = np.argsort(self._values)
            found = self._ratios[order][_nearest(self._values[order], reading.weights)]
        return LabelReading(np.where(reading.readable, found, 0.0), reading.readable, reading.logits)

    def _of_outcomes(self, seen: TranscriptStep) -> LabelReading:
        """Read k classes by trying every outcome."""
        logits, explains = self._white_box.explained_by(seen, self._mechanism, self._estimator)
        of_outcomes = np.exp(self._mechanism.log_likelihood(np.arange(self._mechanism.outcomes)))
        readable = explains.sum(axis=1) < self._mechanism.outcomes
        return _of_many_classes(np.log(np.maximum(explains @ of_outcomes, 1e-30)), readable, logits)

    def _of_coordinates(self, seen: TranscriptStep) -> LabelReading:
        """Read k classes with noise on each coordinate: the outcomes are too many to try."""
        logits, weights = self._white_box.logits_and_weights(seen)
        readable = ~np.isnan(weights[:, 0])  # all of a record or none
        weights = np.where(readable[:, None], weights, 1.0 / self._mechanism.classes)
        if self._posterior:
            # w = softmax(z + λ)
            evidence = np.log(np.maximum(weights, 1e-30)) - logits
        else:
            evidence = self._mechanism.log_likelihood(_nearest(self._values, weights))
        return _of_many_classes(evidence, readable, logits)


class NoisyLabelReader:
    """The white-box attacker without features: reads noisy labels off gradients and scores records by them."""

    def __init__(self, white_box: WhiteBox, mechanism: Mechanism, estimator: Estimator) -> None:
        self._white_box, self._mechanism = white_box, mechanism
        self.evidence = Evidence(white_box, mechanism, estimator)

    @property
    def exact(self) -> bool:
        """True if the noisy label can be read; else scores depend on the network's logits too."""
        return self.evidence.exact

    def distances(self, seen: TranscriptStep) -> Scores:
        """Score by how much nearer the gradient, or the noisy label that is read off it, is to one label's."""
        return self.evidence(seen) if self.exact else self._white_box.nearness(seen)

    def guesses(self, seen: TranscriptStep) -> Scores:
        """Guess the nearer label."""
        found = self.distances(seen)
        return (found > 0).astype(np.float64) if self._mechanism.classes == 2 else found


def _of_many_classes(evidence: Floats, readable: npt.NDArray[np.bool_], logits: Floats) -> LabelReading:
    """Return a reading whose evidence is 0 for the likeliest class."""
    evidence = np.maximum(evidence - evidence.max(axis=1, keepdims=True), -_LARGEST).round(3)
    return LabelReading(np.where(readable[:, None], evidence, 0.0), readable, logits)


def _nearest(levels: Floats, values: Floats) -> npt.NDArray[np.intp]:
    """Return for each value the index of the nearest of the ascending levels."""
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, values)
