"""Attacks whose score depends on the noisy label alone, so that the mechanism's table predicts their AUCs.

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

import numpy as np

from tpsl.attacks.evidence import Evidence
from tpsl.attacks.fingerprint import UNDECIDED, fingerprint_attack
from tpsl.attacks.scoring import Scores
from tpsl.attacks.white_box import WhiteBox
from tpsl.mechanisms import Estimator, Mechanism
from tpsl.training.transcript import TranscriptStep


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
        return self._likelier(seen) if self._mechanism.classes == 2 else self.distances(seen)

    def fingerprint(self, seen: TranscriptStep) -> Scores:
        """Guess by the bits where they decide, by the recovered noisy label elsewhere."""
        received = self._white_box.of_one_member(seen).gradients
        guesses = fingerprint_attack(received, *self._white_box.both_gradients(seen))
        return np.where(guesses == UNDECIDED, self._likelier(seen), guesses).astype(np.float64)

    def _likelier(self, seen: TranscriptStep) -> Scores:
        return (self.evidence(seen) > 0).astype(np.float64)
