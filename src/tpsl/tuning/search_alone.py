"""A search at a feature party alone, on noisy labels that it was handed over; with trees, one committee."""

from __future__ import annotations

from pathlib import Path

from tpsl.data.dataset import Dataset, class_names
from tpsl.data.sides import FeatureSide
from tpsl.handover.learning import labels_for
from tpsl.learners.known import COMMITTEE
from tpsl.learners.learning import LearnResult, learn_with
from tpsl.model.trained import TrainedModel
from tpsl.training.alone import require_alone
from tpsl.training.local import Local
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import ReleasedLabels
from tpsl.tuning.candidates import TuneResult
from tpsl.tuning.search import tune
from tpsl.tuning.space import default_space
from tpsl.tuning.with_judges import train_with_judges


def tune_alone(setup: RunSetup, party: str, local: Local, labels: Path, authority: Path | None = None) -> TuneResult:
    """Train our space of configurations on handed-over `labels`, a file or its folder; noisy labels choose.

    Guarantee: candidates, weights and predictions are those of `tune` with the vault that the labels come from, to the
    last bit. There are no true labels here, and so no test metrics.
    """
    require_alone(setup.job, setup.start)
    side = setup.load_features(party, local)
    return _searched(setup, side, labels_for(setup.job, side, labels, authority))


def learn_auto(setup: RunSetup, party: str, local: Local, labels: Path, authority: Path | None = None) -> LearnResult:
    """Make one committee of the networks of our space, boosted trees and logistic regression; noisy labels weigh them.

    All are trained once more with the records that have judged. Guarantee: that of `learn_with`.
    """
    return learn_with(COMMITTEE, setup, party, local, labels, authority, _searched_with_judges)


def _searched(setup: RunSetup, side: FeatureSide, labels: ReleasedLabels) -> TuneResult:
    return tune(setup, vault=labels, data=_data(setup, side))


def _searched_with_judges(setup: RunSetup, side: FeatureSide, labels: ReleasedLabels) -> TrainedModel:
    data = _data(setup, side)
    own_networks = any(parts.bottom is not None for parts in setup.own.values())
    space = default_space(data.classes, own_networks)
    found = tune(setup, space, vault=labels, data=data)
    candidates = [candidate.as_dict() for candidate in found.candidates]
    return train_with_judges(setup, space, candidates, data, labels)


def _data(setup: RunSetup, side: FeatureSide) -> Dataset:
    return Dataset.of_one(side, class_names(setup.job.data))
