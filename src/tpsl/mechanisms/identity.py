"""No noise: ε = ∞, the paper's Algorithm 1."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.mechanism import Labels, Mechanism, check_classes, spec_of
from tpsl.mechanisms.random_words import Words
from tpsl.mechanisms.table import TOTAL


@dataclass(frozen=True, eq=False)
class Identity(Mechanism):
    """The label itself. It protects nothing; it is here so that non-private training runs through the same code."""

    name = "none"

    def spec(self) -> dict[str, Any]:
        """Return the number of classes."""
        return spec_of(self.name, {"classes": self.classes})

    @property
    def digest(self) -> str:
        """SHA-256 of the definition."""
        return hashlib.sha256(f"identity {self.classes}".encode()).hexdigest()

    @property
    def outcomes(self) -> int:
        """One outcome for each class."""
        return self.classes

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """0 and 1 for two classes, the unit vectors for k."""
        return np.array([0.0, 1.0]) if self.classes == 2 else np.eye(self.classes)

    @property
    def weights(self) -> npt.NDArray[np.object_]:
        """2^64 on the diagonal; Python integers, because 2^64 is one more than 64 bits hold."""
        table = np.zeros((self.classes, self.classes), dtype=object)
        np.fill_diagonal(table, TOTAL)
        return table

    def mean(self, y: int) -> Any:
        """Return the label itself."""
        return float(y) if self.classes == 2 else np.eye(self.classes)[y]

    def variance(self, y: int) -> Any:
        """Return zero."""
        return 0.0 if self.classes == 2 else np.zeros(self.classes)

    def log_likelihood(self, outcomes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return 0 for the label, -∞ for every other class."""
        hit = np.asarray(outcomes)[:, None] == np.arange(self.classes)
        return np.where(hit, 0.0, -np.inf)

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        return labels


def identity(classes: int = 2) -> Identity:
    """Return the mechanism that releases the true label: not private (ε = ∞)."""
    return Identity(check_classes(classes), math.inf, 0.0)
