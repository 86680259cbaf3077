"""How good a classifier can be that knows the true probabilities, computed from a stream of them."""

import numpy as np
import numpy.typing as npt

Facts = dict[str, float | int | str]

# Pairs of records whose probabilities share a bin count as ties; the AUC is off by less than one part in this many.
BINS = 1 << 20


class BayesOptimum:
    """Accumulates true class probabilities in bounded memory and states what the best classifier expects to reach."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._positives = np.zeros(BINS)
        self._negatives = np.zeros(BINS)
        self._rows = 0
        self._correct = 0.0
        self._log_loss = 0.0

    def add(self, probabilities: npt.NDArray[np.float64]) -> None:
        """Add records by their class probabilities [n, classes]."""
        self._rows += len(probabilities)
        self._correct += float(probabilities.max(axis=1).sum())
        self._log_loss -= float((probabilities * np.log(np.maximum(probabilities, 1e-300))).sum())
        if self._classes == 2:
            positive = probabilities[:, 1]
            bins = np.minimum((positive * BINS).astype(np.int64), BINS - 1)
            np.add.at(self._positives, bins, positive)
            np.add.at(self._negatives, bins, probabilities[:, 0])

    def facts(self) -> Facts:
        """Return `bayes_log_loss` and `bayes_accuracy`, and for two classes `bayes_auc`.

        `bayes_auc` is the expected number of correctly ordered pairs over the expected number of pairs (label 1,
        label 0), where record i is positive with its own probability.
        """
        facts: Facts = {
            "bayes_accuracy": self._correct / self._rows,
            "bayes_log_loss": self._log_loss / self._rows,
        }
        if self._classes == 2:
            below = np.cumsum(self._negatives) - self._negatives
            ordered = (self._positives * (below + self._negatives / 2)).sum()
            facts["bayes_auc"] = float(ordered / (self._positives.sum() * self._negatives.sum()))
        return facts
