"""What a learner gets, and what it gives back: a model that predicts, and what noisy labels say of it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.handover.noisy_targets import Floats, NoisyTargets
from tpsl.handover.objective import log_probabilities
from tpsl.training.noisy_metrics import record_log_likelihoods


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
    """Positions among `rows` of the records that judge, ascending; what is chosen is chosen by their noisy labels."""
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.targets):
            raise ValueError(f"{len(self.rows)} rows with the noisy labels of {len(self.targets)}")
        if not 0 < len(self.held_out) < len(self.rows):
            raise ValueError(f"of {len(self.rows)} records, {len(self.held_out)} judge: both parts need a record")

    @property
    def trained(self) -> Rows:
        """Positions among `rows` of the records that do not judge."""
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
    def files(self) -> dict[str, bytes]:
        """Return the model as files; none holds code."""

    @classmethod
    @abc.abstractmethod
    def from_files(cls, files: Mapping[str, bytes]) -> LearnedModel:
        """Return the model that `files` was made of."""


@dataclass(frozen=True)
class Fitted:
    """What a learner has made of the records."""

    name: str
    setting: str
    """What the judges chose, in words."""
    model: LearnedModel
    """Fitted on all records, those that judged included."""
    judged: npt.NDArray[np.float32]
    """Probabilities of the held-out records, by the same learner and setting without them."""
    log_likelihood: float
    """What their noisy labels say of those: what learners are compared by."""
    evidence: float
    """How much more likely they are than under the shares of the classes alone, in nats."""


def judged_by(records: LearnerRecords, name: str, setting: str, model: LearnedModel, judged: Floats) -> Fitted:
    """Return what a learner has fitted, with what the noisy labels of the held-out records say of it.

    `judged` are log-odds of the held-out records, by a model that was fitted without them.
    """
    targets, probabilities = records.targets.take(records.held_out), as_probabilities(judged)
    said = float(record_log_likelihoods(targets.mechanism, targets.draws, probabilities).sum())
    shares = np.tile(records.targets.take(records.trained).class_shares(), (len(targets), 1))
    of_shares = float(record_log_likelihoods(targets.mechanism, targets.draws, shares).sum())
    return Fitted(name, setting, model, probabilities, said, said - of_shares)


def as_probabilities(log_odds: Floats) -> npt.NDArray[np.float32]:
    """Return the probability of class 1 (`[n]`), or of each class (`[n, k]`), of log-odds of the same shape."""
    by_class = np.exp(log_probabilities(log_odds)).astype(np.float32)
    return by_class[:, 1] if log_odds.ndim == 1 else by_class
