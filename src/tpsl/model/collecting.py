"""What the label party collects while it predicts with others: scores, or what only later may become scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from tpsl.data.out_of_core import RowStack
from tpsl.model.half_loading import Embedder, PredictionError, Predictor, Probabilities
from tpsl.model.local_head import TrainedLocalHead
from tpsl.model.scores import Scores
from tpsl.training.schedule import in_parts


class Collecting(Protocol):
    """What the label party makes of the shares of all parties, part by part."""

    def add(self, shares: Mapping[str, Tensor]) -> Probabilities | None:
        """Take in the next part; return its scores if they may leave."""

    def scores(self) -> Scores:
        """Return the scores of all parts."""


class PrivateScores:
    """Scores of the private head, computed at once."""

    def __init__(self, predictor: Predictor, class_names: tuple[str, ...]) -> None:
        self._predictor, self._scores = predictor, Scores(class_names)

    def add(self, shares: Mapping[str, Tensor]) -> Probabilities:
        """Score the next part."""
        found = self._predictor.probabilities(shares)
        if not np.isfinite(found).all():
            raise PredictionError("the network predicts numbers that are not finite")
        self._scores.add(found)
        return found

    def scores(self) -> Scores:
        """Return the scores of all parts."""
        return self._scores


class LocalHeadInputs:
    """What the local head reads, kept until no peer can see how long its scores take: the head knows true labels."""

    def __init__(self, head: TrainedLocalHead, class_names: tuple[str, ...]) -> None:
        self._head, self._class_names = head, class_names
        self._stack = RowStack(np.float32, head.inputs_width)

    def add(self, shares: Mapping[str, Tensor]) -> None:
        """Keep the next part; none of its scores may leave."""
        self._stack.add(self._head.inputs(shares).numpy())

    def scores(self) -> Scores:
        """Score all parts."""
        scores, inputs = Scores(self._class_names), self._stack.finish()
        for rows in in_parts(np.arange(len(inputs), dtype=np.int64)):
            scores.add(self._head.head.predict(inputs[rows]))
        return scores


@dataclass(frozen=True)
class Scoring:
    """How the label party scores records: with which head, and what makes its own share if it has features."""

    predictor: Predictor
    own: Embedder | None
    class_names: tuple[str, ...]
    networks: int = 1
    """How many networks predict."""

    @property
    def is_private(self) -> bool:
        """Whether the scores are those of the private head."""
        return not isinstance(self.predictor, TrainedLocalHead)

    def begin(self) -> Collecting:
        """Begin with the first part."""
        if isinstance(self.predictor, TrainedLocalHead):
            return LocalHeadInputs(self.predictor, self.class_names)
        return PrivateScores(self.predictor, self.class_names)
