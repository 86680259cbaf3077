"""What a learner gets, and what it gives back: a model that predicts, and what noisy labels say of it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.handover.objective import Floats, NoisyTargets, as_probabilities
from tpsl.run.evaluation import record_log_likelihoods

Tensors = Mapping[str, npt.NDArray[Any]]


class LearnerError(ValueError):
    """A learner that cannot be used, or a model that cannot be read; the sentence says which and why."""


@dataclass(frozen=True)
class LearnerRecords:
    """What a learner gets: features, and noisy labels of some of their rows."""

    features: Features
    rows: Rows
    """The rows with noisy labels."""
    targets: NoisyTargets
    """Their noisy labels, in the same order."""
    held_out: Rows
    """Positions among `rows` of the hold-out, ascending; what is chosen is chosen by its noisy labels."""
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.targets):
            raise ValueError(f"{len(self.rows)} rows with the noisy labels of {len(self.targets)}")
        if not 0 < len(self.held_out) < len(self.rows):
            raise ValueError(f"of {len(self.rows)} records, {len(self.held_out)} are held out: both parts need one")

    @property
    def trained(self) -> Rows:
        """Positions among `rows` of the records that are not held out."""
        return np.delete(np.arange(len(self.rows), dtype=np.int64), self.held_out)


class LearnedModel(abc.ABC):
    """A fitted model; it reads features that are encoded as those it was fitted on."""

    kind: ClassVar[str]
    """What a saved model is known by."""
    kinds: ClassVar[dict[str, type[LearnedModel]]] = {}
    """All kinds of models, by name."""

    def __init_subclass__(cls) -> None:
        LearnedModel.kinds[cls.kind] = cls

    @abc.abstractmethod
    def log_odds(self, features: Features) -> Floats:
        """Return the log-odds of class 1 of each record (`[n]`), or a score of each class (`[n, k]`) for a softmax."""

    def probabilities(self, features: Features) -> npt.NDArray[np.float32]:
        """Return the probability of class 1 (`[n]`), or of each class (`[n, k]`)."""
        return as_probabilities(self.log_odds(features))

    @abc.abstractmethod
    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return the model as named tensors; none holds code."""

    @classmethod
    @abc.abstractmethod
    def from_tensors(cls, tensors: Tensors) -> LearnedModel:
        """Return the model that `tensors` was made of."""


@dataclass(frozen=True)
class Fitted:
    """What a learner has made of the records."""

    name: str
    setting: str
    """What the hold-out chose, in words."""
    model: LearnedModel
    """Fitted on all records, those of the hold-out included."""
    predicted: npt.NDArray[np.float32]
    """Probabilities of the hold-out, by the same learner and setting without it."""
    log_likelihood: float
    """What the noisy labels of the hold-out say of those: what learners are compared by."""
    evidence: float
    """How much more likely they are than under the shares of the classes alone, in nats."""

    @classmethod
    def of(cls, records: LearnerRecords, name: str, setting: str, model: LearnedModel, log_odds: Floats) -> Fitted:
        """Return what a learner has fitted, with what noisy labels say of it.

        `log_odds` are of the hold-out, by a model that was fitted without it.
        """
        targets, predicted = records.targets.take(records.held_out), as_probabilities(log_odds)
        shares = np.tile(records.targets.take(records.trained).class_shares(), (len(targets), 1))
        said, of_shares = (
            float(record_log_likelihoods(targets.mechanism, targets.draws, one).sum()) for one in (predicted, shares)
        )
        return cls(name, setting, model, predicted, said, said - of_shares)
