"""How far an attacker with features could get: estimated at the label party, with true labels and what is at hand.

The true ceiling is the AUC of `ln p(x) / (1 - p(x)) + λ_t` with the true p(x) = P(y = 1 | x), which nobody knows
(`tpsl.attacks.with_features`). What is computed here is the AUC, on the records of the run, of the sum

    a · λ_t + b · additive model of the features + c · logit of the trained network

where the additive model is fitted on the true labels of other records, and a, b, c are the numbers under which the true
labels are most likely. It is an estimate from below: no score of x and t has a larger expected AUC than the true
ceiling, and a better prediction from features would come nearer to it. So an attack can lie above the estimate, if it
predicts better than both models; then its own AUC is the better estimate. Three fitted numbers flatter the sum by no
more than its confidence interval covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tpsl.attacks.with_features import (
    Floats,
    ReadTranscript,
    Rows,
    RowScores,
    best_combination,
    drawn_evidence,
    out_of_fold,
)
from tpsl.data.features import Features
from tpsl.mechanisms import Mechanism


@dataclass(frozen=True)
class Evaluated:
    """The records of a transcript as the label party knows them; what is not at hand is None."""

    rows: Rows
    labels: npt.NDArray[np.int64]
    """The true labels of these rows."""
    classes: int
    features: Features | None
    """Of all parties, for all rows of the table."""
    read: ReadTranscript | None

    @property
    def predicted_from(self) -> tuple[str, ...]:
        """What there is to predict labels from."""
        models = {"an additive model of the features": self.features, "the network's logits": self.read}
        return tuple(name for name, source in models.items() if source is not None)

    def with_noisy_labels(self, mechanism: Mechanism, draws: int, *, exact: bool) -> RowScores | None:
        """Return the best score at hand for who has noisy labels and features; None if nothing predicts labels.

        A noisy label is taken as the transcript shows it. Where it does not (no step shows it, `exact` is false, or it
        is a second draw, which shows in the weights alone), one is drawn in its place, for this evaluation only.
        """
        if not self.predicted_from:
            return None
        evidence = sum(drawn_evidence(mechanism, self.labels, draw) for draw in range(1, draws))
        first = drawn_evidence(mechanism, self.labels)
        if self.read is not None and exact:
            first = np.where(self.read.readable[:, None], self.read.evidence, first)
        parts = [evidence + first]
        if self._learned is not None:
            parts.append(self._learned)
        if self.read is not None:
            parts.append(self.read.logits)
        return RowScores(self.rows, best_combination(parts, self.labels))

    def features_alone(self) -> RowScores | None:
        """Return the best prediction from features alone; None without features."""
        return None if self._learned is None else RowScores(self.rows, self._learned)

    @cached_property
    def _learned(self) -> Floats | None:
        if self.features is None:
            return None
        usable = np.ones(len(self.rows), dtype=bool)
        return out_of_fold(self.features, self.rows, np.eye(self.classes)[self.labels], usable)
