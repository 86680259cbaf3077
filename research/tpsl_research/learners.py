"""Learners on noisy labels that are compared with networks: trees, logistic regression, an ensemble of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.handover import trees
from tpsl.handover.objective import Floats, NoisyLabelObjective, as_probabilities
from tpsl.handover.trees import LearnerRecords
from tpsl.heads.wide_part import FAR
from tpsl.model.predictors import Probabilities, mixture
from tpsl.run.evaluation import ensemble_weights, record_log_likelihoods

_PENALTIES = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""Of logistic regression, prior precisions of a weight, from the strongest on: the hold-out chooses."""
_STEPS = 60


@dataclass(frozen=True)
class Learned:
    """What a learner has made of the records."""

    setting: str
    """What the hold-out chose, in words."""
    predicted: Probabilities
    """Probabilities of the hold-out, by the same learner and setting without it."""
    probabilities: Callable[[Features], Probabilities]
    """The model, fitted on all records."""


def boosted_trees(records: LearnerRecords, *, plain: bool = False) -> Learned:
    """Grow trees on an additive model, or `plain` ones, as many as the hold-out likes."""
    found = trees.fit(records, plain=plain)
    return Learned(f"{found.rounds} rounds of trees", found.predicted, found.model.probabilities)


def logistic(records: LearnerRecords) -> Learned:
    """Fit by maximum likelihood with one penalty after the other on all but the hold-out, with the best one on all.

    There is a constant for each score, and a weight for each row of the embedding table and each number.
    """
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

    def probabilities(features: Features) -> Probabilities:
        every = np.arange(len(features), dtype=np.int64)
        return as_probabilities(_scores(_design(features, every), base, weights))

    return Learned(f"penalty {chosen:g}", as_probabilities(predicted), probabilities)


def ensemble(records: LearnerRecords) -> Learned:
    """Return the mixture of all learners, by the weights for which the hold-out's noisy labels are most likely."""
    members = {
        "trees": boosted_trees(records),
        "plain trees": boosted_trees(records, plain=True),
        "logistic": logistic(records),
    }
    targets = records.targets.take(records.held_out)
    said = [record_log_likelihoods(targets.mechanism, targets.draws, one.predicted) for one in members.values()]
    weights = ensemble_weights(said).tolist()
    weighted = list(zip(weights, members.values(), strict=True))
    return Learned(
        ", ".join(f"{weight:.2f} {name}" for weight, name in zip(weights, members, strict=True)),
        mixture((weight, one.predicted) for weight, one in weighted),
        lambda features: mixture((weight, one.probabilities(features)) for weight, one in weighted),
    )


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
