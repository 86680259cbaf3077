"""Gradient boosting on noisy labels, by whichever library: the same settings, stopped by the same judges.

The Hessian of `NoisyLabelObjective` counts in clean labels. So the least Hessian of a leaf and the penalty of its value
hold at every ε and number of records: where noise leaves little, few leaves are made, or none.
"""

from __future__ import annotations

import abc
import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.handover.learner import LearnerError
from tpsl.handover.noisy_targets import Floats
from tpsl.handover.objective import NoisyLabelObjective

LEAVES = 31
LEARNING_RATE = 0.05
PENALTY = 30.0
"""Of a leaf's value: its prior is normal with a variance of 1/30 in log-odds, before the learning rate."""
_RECORDS_OF_A_LEAF = 100
"""How many clean labels a leaf's records are worth, at least."""
COLUMNS_OF_A_TREE = 0.5
BINS = 63
_ROUNDS, PATIENCE = 500, 30
CLEAR_GAIN = 0.1
"""Nats by which the judges must like it better within that patience; less is noise, and costs time."""


@dataclass(frozen=True)
class BoostingInputs:
    """Records as boosting sees them."""

    columns: npt.NDArray[np.float32]
    categorical: tuple[int, ...]
    """The columns that hold codes of categories."""
    start: Floats
    """Log-odds before the first tree, `[n]` or `[n, k]`."""


@dataclass(frozen=True)
class BoostingTask:
    """What to grow trees on."""

    inputs: BoostingInputs
    objective: NoisyLabelObjective
    """The noisy labels of the same records."""
    seed: int
    threads: int

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.objective.targets.classes

    @property
    def least_information(self) -> float:
        """The least sum of Hessians in a leaf."""
        shares = self.objective.targets.class_shares()
        return _RECORDS_OF_A_LEAF * float((shares * (1 - shares)).mean())

    @property
    def most_rounds(self) -> int:
        """The most trees for each score: with many classes a round is many trees."""
        return _ROUNDS if self.classes == 2 else max(20, 10 * _ROUNDS // self.classes)


class Booster(abc.ABC):
    """Grown trees, which add to the log-odds that they started from."""

    @classmethod
    @abc.abstractmethod
    def grow(cls, task: BoostingTask, rounds: int) -> Booster:
        """Grow this number of trees for each score."""

    @classmethod
    @abc.abstractmethod
    def grow_judged(cls, task: BoostingTask, judges: BoostingInputs, said: NoisyLabelObjective) -> tuple[Booster, int]:
        """Grow until noisy labels of the judges like it less; return the trees that they like best, and how many."""

    @abc.abstractmethod
    def raise_by(self, inputs: BoostingInputs) -> Floats:
        """Return what the trees add to the log-odds of each record."""

    @abc.abstractmethod
    def content(self) -> bytes:
        """Return the trees as text."""

    @classmethod
    @abc.abstractmethod
    def from_content(cls, content: bytes) -> Booster:
        """Return the trees that `content` was made of."""


def require(module: str, name: str, package: str) -> Any:
    """Return a library that is there on request; one that is missing is a sentence that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise LearnerError(f"{name} is not installed: `pip install '{package}'` gets it") from None
