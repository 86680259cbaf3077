"""A committee of learners: a mixture of what its members predict, weighted by noisy labels of held-out records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpsl.data.features import Features
from tpsl.handover.learner import Fitted, LearnedModel, LearnerRecords, judged_by
from tpsl.handover.noisy_targets import Floats
from tpsl.training.noisy_metrics import clipped, committee_weights, record_log_likelihoods

_MEMBERS = "members.json"


@dataclass(frozen=True)
class CommitteeModel(LearnedModel):
    """Models and their weights, which add up to 1."""

    members: tuple[tuple[float, LearnedModel], ...]

    kind = "committee"

    def log_odds(self, features: Features) -> Floats:
        """Return the log-odds of class 1 of each record (`[n]`), or the logarithm of each probability (`[n, k]`)."""
        return mixed([(weight, model.probabilities(features)) for weight, model in self.members])

    def files(self) -> dict[str, bytes]:
        """Return the files of all members, each name after the member's number."""
        described = [{"weight": weight, "model": model.kind} for weight, model in self.members]
        own = {f"{n}-{name}": part for n, (_, model) in enumerate(self.members) for name, part in model.files().items()}
        return {_MEMBERS: json.dumps(described).encode(), **own}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> CommitteeModel:
        """Return the committee that `files` was made of."""
        members = []
        for number, described in enumerate(json.loads(files[_MEMBERS])):
            prefix = f"{number}-"
            own = {name.removeprefix(prefix): part for name, part in files.items() if name.startswith(prefix)}
            members.append((float(described["weight"]), cls.kinds[described["model"]].from_files(own)))
        return cls(tuple(members))


def committee(records: LearnerRecords, fitted: Sequence[Fitted]) -> Fitted:
    """Return the mixture of these, by the weights for which the judges' noisy labels are most likely."""
    weights = weights_by_judges(records, [one.judged for one in fitted])
    setting = ", ".join(f"{weight:.2f} {one.name}" for weight, one in zip(weights, fitted, strict=True))
    model = CommitteeModel(tuple((weight, one.model) for weight, one in zip(weights, fitted, strict=True)))
    judged = mixed([(weight, one.judged) for weight, one in zip(weights, fitted, strict=True)])
    return judged_by(records, "committee", setting, model, judged)


def weights_by_judges(records: LearnerRecords, judged: Sequence[npt.NDArray[np.float32]]) -> list[float]:
    """Return the weight of each of several predictions of the held-out records, by their noisy labels (stacking)."""
    targets = records.targets.take(records.held_out)
    likelihoods = [record_log_likelihoods(targets.mechanism, targets.draws, one) for one in judged]
    return [float(weight) for weight in committee_weights(likelihoods)]


def mixed(members: Sequence[tuple[float, npt.NDArray[np.float32]]]) -> Floats:
    """Return log-odds `[n]`, or logarithms of probabilities `[n, k]`, of weighted probabilities."""
    by_class: Floats = np.log(sum(weight * clipped(probabilities)[1] for weight, probabilities in members))
    return by_class[:, 1] - by_class[:, 0] if members[0][1].ndim == 1 else by_class
