"""No noise: ε = ∞, the paper's Algorithm 1."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms.mechanism import Labels, check_classes
from tpsl.mechanisms.random_words import Words
from tpsl.mechanisms.randomized_response import RandomizedResponse
from tpsl.mechanisms.table import TOTAL


@dataclass(frozen=True, eq=False)
class Identity(RandomizedResponse):
    """The label itself: randomised response that always keeps it.

    It protects nothing; it is here so that non-private training runs through the same code.
    """

    name = "none"

    @property
    def digest(self) -> str:
        """SHA-256 of the definition."""
        return hashlib.sha256(f"identity {self.classes}".encode()).hexdigest()

    def _draw(self, labels: Labels, words: Words) -> npt.NDArray[np.integer]:
        return labels


def identity(classes: int = 2) -> Identity:
    """Return the mechanism that releases the true label: not private (ε = ∞)."""
    return Identity(check_classes(classes), math.inf, 0.0, {}, TOTAL, 0)
