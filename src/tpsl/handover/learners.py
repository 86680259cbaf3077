"""Learners by name: boosted trees, logistic regression, an ensemble of both, and their models as files.

    fitted = fit("lightgbm", LearnerRecords(features, rows, targets, held_out))
    fitted.model.probabilities(features)

A user's learner is a function from `LearnerRecords` to `Fitted`:

    LEARNERS.register("nearest", nearest)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as as_bytes
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.files import make_private_folder, write_atomically
from tpsl.handover.learner import Fitted, LearnedModel, LearnerError, LearnerRecords, Tensors
from tpsl.handover.objective import Floats, NoisyLabelObjective
from tpsl.handover.trees import lightgbm
from tpsl.heads.wide_part import FAR
from tpsl.registry import Registry
from tpsl.run.evaluation import clipped, ensemble_weights, record_log_likelihoods

ENSEMBLE = "ensemble"
"""The name that stands for those of `IN_ENSEMBLE` together, weighted by noisy labels."""
IN_ENSEMBLE = ("lightgbm", "plain_lightgbm", "logistic")
_VERSION = "1"
_PENALTIES = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""Of logistic regression, prior precisions of a weight, from the strongest on: the hold-out chooses."""
_STEPS = 60


def fit(name: str, records: LearnerRecords) -> Fitted:
    """Fit the learner of this name. Guarantee: a function of features and noisy labels, so post-processing of them."""
    return LEARNERS.get(name)(records)


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
    """Fit by maximum likelihood with one penalty after the other on all but the hold-out, with the best one on all."""
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


@dataclass(frozen=True)
class EnsembleModel(LearnedModel):
    """Models and their weights, which add up to 1."""

    members: tuple[tuple[float, LearnedModel], ...]

    kind = "ensemble"

    def log_odds(self, features: Features) -> Floats:
        """Return the log-odds of class 1 of each record (`[n]`), or the logarithm of each probability (`[n, k]`)."""
        return mixed([(weight, model.probabilities(features)) for weight, model in self.members])

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return the weights, and the tensors of all members, named after the member's number and kind."""
        found = {"weights": np.array([weight for weight, _ in self.members])}
        for number, (_, model) in enumerate(self.members):
            found |= {f"{number}.{model.kind}.{name}": tensor for name, tensor in model.tensors().items()}
        return found

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> EnsembleModel:
        """Return the ensemble of these tensors."""
        members = []
        for number, weight in enumerate(tensors["weights"]):
            own = {name.split(".", 1)[1]: t for name, t in tensors.items() if name.startswith(f"{number}.")}
            (kind,) = {name.split(".", 1)[0] for name in own}
            model = cls.kinds[kind].from_tensors({name.split(".", 1)[1]: tensor for name, tensor in own.items()})
            members.append((float(weight), model))
        return cls(tuple(members))


def ensemble(records: LearnerRecords) -> Fitted:
    """Return the mixture of several learners, by the weights for which the hold-out's noisy labels are most likely."""
    fitted = [fit(name, records) for name in IN_ENSEMBLE]
    weights = weights_by_hold_out(records, [one.predicted for one in fitted])
    weighted = list(zip(weights, fitted, strict=True))
    setting = ", ".join(f"{weight:.2f} {one.name}" for weight, one in weighted)
    model = EnsembleModel(tuple((weight, one.model) for weight, one in weighted))
    return Fitted.of(records, ENSEMBLE, setting, model, mixed([(weight, one.predicted) for weight, one in weighted]))


def weights_by_hold_out(records: LearnerRecords, predicted: Sequence[npt.NDArray[np.float32]]) -> list[float]:
    """Return the weight of each of several predictions of the hold-out, by its noisy labels (stacking)."""
    targets = records.targets.take(records.held_out)
    likelihoods = [record_log_likelihoods(targets.mechanism, targets.draws, one) for one in predicted]
    return [float(weight) for weight in ensemble_weights(likelihoods)]


def mixed(members: Sequence[tuple[float, npt.NDArray[np.float32]]]) -> Floats:
    """Return log-odds `[n]`, or logarithms of probabilities `[n, k]`, of weighted probabilities."""
    by_class: Floats = np.log(sum(weight * clipped(probabilities) for weight, probabilities in members))
    return by_class[:, 1] - by_class[:, 0] if members[0][1].ndim == 1 else by_class


LEARNERS: Registry[Callable[[LearnerRecords], Fitted]] = Registry("learner")
LEARNERS.register("lightgbm", lightgbm)
LEARNERS.register("logistic", logistic)
LEARNERS.register("plain_lightgbm", partial(lightgbm, plain=True))
LEARNERS.register(ENSEMBLE, ensemble)


def save(model: LearnedModel, path: Path) -> None:
    """Write a model as a file of tensors, whole or not at all."""
    make_private_folder(path.parent)
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in model.tensors().items()}
    write_atomically(path, as_bytes(tensors, {"version": _VERSION, "model": model.kind}))


def load(path: Path) -> LearnedModel:
    """Return the model that `save` has written; a file that holds none is an error in one sentence."""
    try:
        with safe_open(path, "np") as file:
            described = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
        kind, version = described.get("model", ""), described.get("version")
        if version != _VERSION or kind not in LearnedModel.kinds:
            known = f"{', '.join(LearnedModel.kinds)}, version {_VERSION}"
            raise LearnerError(f"{path}: holds a model {kind!r}, version {version!r}; known are {known}")
        return LearnedModel.kinds[kind].from_tensors(tensors)
    except LearnerError:
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise LearnerError(f"{path}: its model cannot be read ({error})") from error
