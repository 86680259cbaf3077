"""A run whose model is no network: a learner on handed-over labels, in a folder of its own.

RUN/job.yaml               the agreement: which data, which noise, which hold-out
RUN/learner/               the model as files, none with code, and `result.json`, written last
RUN/learner/test.npy       what the model says of the test records
RUN/<feature party>/       how its table was encoded
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpsl.data.dataset import feature_party_names
from tpsl.data.features import Features
from tpsl.data.sides import FeatureSide
from tpsl.data.source import Inputs, table_features
from tpsl.data.split import Rows
from tpsl.files import for_json, write_atomically
from tpsl.handover.learning import labels_for, load_side
from tpsl.learners.known import LEARNERS, fit, load, save
from tpsl.learners.learner import LearnedModel, LearnerRecords
from tpsl.learners.noisy_targets import NoisyTargets
from tpsl.prediction.halves import Probabilities
from tpsl.training.alone import require_alone
from tpsl.training.handed_labels import HandedLabels
from tpsl.training.local import Local
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import held_out
from tpsl.training.setup import RunSetup
from tpsl.training.validation import Validation, noisy_validation

LEARNER = "learner"
_RESULT = "result.json"
_HELD_OUT = 0.1
"""The share of records that judge where the job holds out none: every learner chooses its size by them."""


@dataclass(frozen=True)
class LearnedResult:
    """What a learner has made of handed-over labels: a function of these and of features."""

    run: str
    learner: str
    setting: str
    """What noisy labels of held-out records have chosen."""
    mechanism: str
    epsilon: float
    delta: float
    total_epsilon: float
    """The most that any record had spent in all, as the card says."""
    total_delta: float
    private: bool
    train_records: int
    validation: Validation

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data, flat."""
        content = asdict(self)
        content |= content.pop("validation")
        return {name: for_json(value) for name, value in content.items()}


def learn_with(
    name: str, setup: RunSetup, party: str, local: Local, labels: Path, authority: Path | None = None
) -> LearnedResult:
    """Fit the learner of this name on handed-over `labels`, and keep model, encoder and predictions of test records.

    Guarantee: that of `tpsl.handover.learning.learn`; the noisy labels of held-out records choose, at no cost.
    """
    require_alone(setup.job, setup.start)
    LEARNERS.get(name)  # an unknown one is refused before records are read
    with setup.run.started(setup.job, [party], moved=True):
        side = load_side(setup, party, local)
        handed = labels_for(setup.job, side, labels, authority)
        records = _records(setup, side, handed, local.threads or 1)
        fitted = fit(name, records)
        folder = setup.run.path / LEARNER
        save(fitted.model, folder)
        if side.encoder is not None:
            setup.run.save_encoder(party, side.encoder)
        predicted = io.BytesIO()
        np.save(predicted, fitted.model.probabilities(records.features.take(side.test)), allow_pickle=False)
        write_atomically(folder / "test.npy", predicted.getvalue())
        judges = records.targets.take(records.held_out)
        validation = noisy_validation(judges.mechanism, judges.draws, fitted.judged)
        result = _result(setup.run, handed, fitted.name, fitted.setting, validation)
        write_atomically(folder / _RESULT, json.dumps(result.as_dict(), indent=1).encode())
        return result


def has_learner(run: Path) -> bool:
    """Return whether a folder holds the model of a learner, and no network."""
    return (run / LEARNER / _RESULT).exists()


@dataclass(frozen=True)
class LearnedNetwork:
    """The model of a learner where `predict_records` takes a network: one party's features alone go into it."""

    party: str
    model: LearnedModel
    networks = 1

    @classmethod
    def open(cls, run: RunFolder) -> LearnedNetwork:
        """Return the model of a run."""
        (party,) = feature_party_names(run.job().data)
        return cls(party, load(run.path / LEARNER))

    @property
    def parties(self) -> tuple[str, ...]:
        """The party whose inputs are needed."""
        return (self.party,)

    def part(self, inputs: Mapping[str, Features | Inputs], rows: Mapping[str, Rows]) -> Probabilities:
        """Return the probabilities of some records, computed at once."""
        return self.model.probabilities(table_features(inputs[self.party], "a learner").take(rows[self.party]))


def _records(setup: RunSetup, side: FeatureSide, handed: HandedLabels, threads: int) -> LearnerRecords:
    training, noisy = setup.job.training, handed.noisy()
    return LearnerRecords(
        table_features(side.features, "a learner"),
        side.train,
        NoisyTargets(noisy.mechanism, noisy.draws),
        held_out(len(side.train), training.validation or _HELD_OUT, training.seed),
        training.seed,
        threads,
    )


def _result(run: RunFolder, handed: HandedLabels, name: str, setting: str, validation: Validation) -> LearnedResult:
    noisy, spent = handed.noisy(), handed.total()
    return LearnedResult(
        run=str(run.path),
        learner=name,
        setting=setting,
        mechanism=noisy.mechanism.name,
        epsilon=noisy.epsilon,
        delta=noisy.delta,
        total_epsilon=spent.epsilon,
        total_delta=spent.delta,
        private=spent.private,
        train_records=len(noisy),
        validation=validation,
    )
