"""Logistic regression on noisy labels: a weight for every category and number, by maximum likelihood with a penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.handover.learner import Fitted, LearnedModel, LearnerError, LearnerRecords, Tensors
from tpsl.handover.objective import Floats, NoisyLabelObjective
from tpsl.heads.wide_part import FAR

_PENALTIES = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""Prior precisions of a weight, from the strongest on: the hold-out chooses."""
_STEPS = 60


@dataclass(frozen=True)
class LogisticModel(LearnedModel):
    """A constant for each score, and a weight for each row of the embedding table and each number."""

    base: Floats
    """`[1]` for two classes, `[k]` for k."""
    weights: Floats
    """`[embedding rows + numbers, 1 or k]`."""
    embedding_rows: int

    kind = "logistic"

    def log_odds(self, features: Features) -> Floats:
        """Return the log-odds of class 1 of each record (`[n]`), or a score of each class (`[n, k]`)."""
        width = features.embedding_rows + len(features.numeric_fields)
        if (width, features.embedding_rows) != (len(self.weights), self.embedding_rows):
            raise LearnerError(f"the model reads {len(self.weights)} categories and numbers, not {width}")
        return _scores(_design(features, np.arange(len(features), dtype=np.int64)), self.base, self.weights)

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return the weights."""
        return {"base": self.base, "weights": self.weights, "embedding_rows": np.array([self.embedding_rows])}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> LogisticModel:
        """Return the model of these weights."""
        return cls(tensors["base"], tensors["weights"], int(tensors["embedding_rows"][0]))


def logistic(records: LearnerRecords) -> Fitted:
    """Fit on all but the hold-out with one penalty after the other, and on all with the one that it likes best."""
    hold_out = NoisyLabelObjective(records.targets.take(records.held_out))
    objective = NoisyLabelObjective(records.targets.take(records.trained))
    design, held = (_design(records.features, records.rows[part]) for part in (records.trained, records.held_out))
    base = objective.targets.base_scores()
    weights = np.zeros((design.shape[1], len(base)))
    best, chosen, predicted = -np.inf, _PENALTIES[0], np.empty(0)
    for penalty in _PENALTIES:
        weights = _fitted(objective, design, base, weights, penalty)
        scores = _scores(held, base, weights)
        found = float(hold_out.log_likelihoods(scores).sum())
        if found <= best:
            break
        best, chosen, predicted = found, penalty, scores
    whole = NoisyLabelObjective(records.targets)
    base = whole.targets.base_scores()
    weights = _fitted(whole, _design(records.features, records.rows), base, np.zeros_like(weights), chosen)
    model = LogisticModel(base, weights, records.features.embedding_rows)
    return Fitted.of(records, "logistic", f"penalty {chosen:g}", model, predicted)


def _fitted(objective: NoisyLabelObjective, design: csr_matrix, base: Floats, start: Floats, penalty: float) -> Floats:
    """Return the weights that make the noisy labels most likely, less half the penalty times their squares."""

    def loss(flat: Floats) -> tuple[float, Floats]:
        scores = _scores(design, base, flat.reshape(start.shape))
        gradient, _ = objective.gradient_and_hessian(scores)
        value = -float(objective.log_likelihoods(scores).sum()) + penalty / 2 * float(np.square(flat).sum())
        return value, (design.T @ gradient.reshape(len(gradient), -1)).ravel() + penalty * flat

    found: Floats = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    return found.reshape(start.shape)


def _scores(design: csr_matrix, base: Floats, weights: Floats) -> Floats:
    scores: Floats = base + design @ weights
    return scores[:, 0] if len(base) == 1 else scores


def _design(features: Features, rows: Rows) -> csr_matrix:
    """Return a 1 for each category of a record, and its numbers."""
    categories = features.categorical[rows]
    count, fields = categories.shape
    ends = np.arange(0, count * fields + 1, max(1, fields)) if fields else np.zeros(count + 1, dtype=np.int64)
    hot = csr_matrix((np.ones(categories.size), categories.ravel(), ends), shape=(count, features.embedding_rows))
    numbers = np.clip(features.numeric[rows].astype(np.float64), -FAR, FAR)
    return csr_matrix(hstack([hot, csr_matrix(numbers)]))
