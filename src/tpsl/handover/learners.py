"""Learners by name, their ensemble, and their models as files.

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

from tpsl.data.features import Features
from tpsl.files import make_private_folder, write_atomically
from tpsl.handover.learner import Fitted, LearnedModel, LearnerError, LearnerRecords, Tensors
from tpsl.handover.logistic import logistic
from tpsl.handover.objective import Floats
from tpsl.handover.trees import lightgbm
from tpsl.registry import Registry
from tpsl.training.noisy_metrics import clipped, committee_weights, record_log_likelihoods

ENSEMBLE = "ensemble"
"""The name that stands for those of `IN_ENSEMBLE` together, weighted by noisy labels."""
IN_ENSEMBLE = ("lightgbm", "plain_lightgbm", "logistic")
_VERSION = "1"

Learner = Callable[[LearnerRecords], Fitted]
LEARNERS: Registry[Learner] = Registry("learner")
LEARNERS.register("lightgbm", lightgbm)
LEARNERS.register("logistic", logistic)
LEARNERS.register("plain_lightgbm", partial(lightgbm, plain=True))
LEARNERS.register(ENSEMBLE, lambda records: _ensemble(records, [fit(name, records) for name in IN_ENSEMBLE]))


def fit(name: str, records: LearnerRecords) -> Fitted:
    """Fit the learner of this name. Guarantee: a function of features and noisy labels, so post-processing of them."""
    return LEARNERS.get(name)(records)


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
        weights = {"weights": np.array([weight for weight, _ in self.members])}
        return weights | {
            f"{number}.{model.kind}.{name}": tensor
            for number, (_, model) in enumerate(self.members)
            for name, tensor in model.tensors().items()
        }

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> EnsembleModel:
        """Return the ensemble of these tensors."""
        parts = [dict[str, npt.NDArray[Any]]() for _ in tensors["weights"]]
        kinds = [""] * len(parts)
        for name in tensors.keys() - {"weights"}:
            number, kind, rest = name.split(".", 2)
            kinds[int(number)], parts[int(number)][rest] = kind, tensors[name]
        models = [cls.kinds[kind].from_tensors(own) for kind, own in zip(kinds, parts, strict=True)]
        return cls(tuple(zip(map(float, tensors["weights"]), models, strict=True)))


def _ensemble(records: LearnerRecords, fitted: Sequence[Fitted]) -> Fitted:
    """Return the mixture of these, by the weights for which the noisy labels of the hold-out are most likely."""
    weights = weights_by_hold_out(records, [one.predicted for one in fitted])
    setting = ", ".join(f"{weight:.2f} {one.name}" for weight, one in zip(weights, fitted, strict=True))
    model = EnsembleModel(tuple((weight, one.model) for weight, one in zip(weights, fitted, strict=True)))
    predicted = mixed([(weight, one.predicted) for weight, one in zip(weights, fitted, strict=True)])
    return Fitted.of(records, ENSEMBLE, setting, model, predicted)


def weights_by_hold_out(records: LearnerRecords, predicted: Sequence[npt.NDArray[np.float32]]) -> list[float]:
    """Return the weight of each of several predictions of the hold-out, by its noisy labels (stacking)."""
    targets = records.targets.take(records.held_out)
    likelihoods = [record_log_likelihoods(targets.mechanism, targets.draws, one) for one in predicted]
    return [float(weight) for weight in committee_weights(likelihoods)]


def mixed(members: Sequence[tuple[float, npt.NDArray[np.float32]]]) -> Floats:
    """Return log-odds `[n]`, or logarithms of probabilities `[n, k]`, of weighted probabilities."""
    by_class: Floats = np.log(sum(weight * clipped(probabilities)[1] for weight, probabilities in members))
    return by_class[:, 1] - by_class[:, 0] if members[0][1].ndim == 1 else by_class


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
