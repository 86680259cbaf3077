"""The feature party's side of a hand-over with another learner than the network: fitted here, kept here.

RUN/PARTY/networks/     a search for networks that are in one committee with the learner, if there was one
RUN/PARTY/learner/      the model (`tpsl.learners.known.load`)
RUN/PARTY/learned.json  what it is, and what noisy labels of held-out records say of it; written at last
RUN/PARTY/encoder/      how the party's table was encoded
RUN/test_scores.parquet scores of the test records, for the label party to judge
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tpsl.data.dataset import class_names, feature_party_names
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.data.sides import FeatureSide
from tpsl.files import for_json, read_plain, write_atomically
from tpsl.handover.learning import labels_for
from tpsl.learners.committee_model import mixed, weights_by_judges
from tpsl.learners.known import LEARNERS, fit, load, save
from tpsl.learners.learner import Fitted, LearnedModel, LearnerError, LearnerRecords, judged_by
from tpsl.learners.noisy_targets import NoisyTargets
from tpsl.model.predictors import Probabilities, TrainedHalves, mixture
from tpsl.model.records import NewRecords, Scores
from tpsl.model.trained import WITH_JUDGES, TrainedModel
from tpsl.training.alone import require_alone
from tpsl.training.job import Job
from tpsl.training.job_sections import HELD_OUT
from tpsl.training.local import Local
from tpsl.training.noisy_metrics import Validation, noisy_validation
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import held_out, in_parts
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import ReleasedLabels
from tpsl.vault import NoisyLabels

TEST_SCORES = "test_scores.parquet"
AUTO = "auto"
"""What the committee of networks and a learner is called."""
_MODEL, _NETWORKS, _RESULT = "learner", "networks", "learned.json"
_CLEAR = 3.0
"""Nats: labels that are e^3 times as likely."""
_TABLES_ONLY = "a learner other than the network reads tables, and the job's data are the party's own"


Search = Callable[[RunSetup, FeatureSide, ReleasedLabels], object]
"""Searches for networks in the set-up's folder, and trains them with the judges, too (`tpsl.tuning.with_judges`)."""


@dataclass(frozen=True)
class LearnResult:
    """What came of it; no true label has a part in any number."""

    out: str
    learner: str
    setting: str
    """What the judges chose, in words."""
    mechanism: str
    epsilon: float
    """The ε of the noisy labels; whatever is fitted on them, it stays the same."""
    delta: float
    total_epsilon: float
    """The largest ε that any of the records has spent, as far as the card says."""
    private: bool
    records: int
    effective_labels: float
    """About how many clean labels their noisy labels are worth."""
    judges: int
    """Records of these that were kept apart to choose."""
    evidence: float
    """How much more likely their noisy labels are than under the shares of the classes alone, in nats."""
    validation: Validation
    """What their noisy labels say of the same learner and setting, fitted without them."""
    networks: float = 0.0
    """The weight of networks in their committee with the learner."""

    @property
    def reliable(self) -> bool:
        """Whether the judges can tell the model from the shares of the classes."""
        return self.evidence > _CLEAR

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data, flat."""
        content = asdict(self)
        judged = content.pop("validation")
        found: dict[str, Any] = for_json({**content, **judged})
        return found

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> LearnResult:
        """Return what `as_dict` was made of."""
        missing = {name: math.inf if name.endswith("epsilon") else math.nan for name in content}
        given: dict[str, Any] = {name: missing[name] if value is None else value for name, value in content.items()}
        judged = Validation(**{name: given.pop(name) for name in Validation.__dataclass_fields__})
        return cls(**given, validation=judged)


def learn_with(
    learner: str,
    setup: RunSetup,
    party: str,
    local: Local,
    labels: Path,
    authority: Path | None = None,
    search: Search | None = None,
) -> LearnResult:
    """Fit a learner at a job's only feature party on handed-over `labels`, a file or its folder.

    Guarantee: features and model stay here, and the model is post-processing of the labels. Of the job count its data,
    its privacy, `training.seed` and `training.validation`. With a `search`, for which all of the job counts, the
    networks that it finds and the learner are one committee, AUTO. A finished run is only read.
    """
    LEARNERS.get(learner)
    require_alone(setup.job, setup.start)
    for_networks, setup = setup, replace(setup, job=setup.job.with_labels_handed_over())
    with setup.run.started(setup.job, [party], moved=True):
        finished = _finished(setup.run, party, learner if search is None else AUTO)
        if finished is not None:
            setup.say_finished()
            return finished
        side = setup.load_features(party, local)
        handed = labels_for(setup.job, side, labels, authority)
        setup.watching.notice(f"{len(handed.labels):,} noisy labels, released with {handed.labels.mechanism}")
        records = records_of(setup.job, side, handed.labels, local.threads or 1)
        if search is None:
            return _kept(setup, side, records, replace(fit(learner, records), name=learner), handed)
        networks = RunFolder(setup.run.party(party) / _NETWORKS)
        search(replace(for_networks, run=networks), side, handed)
        fitted, weight = _with_networks(records, fit(learner, records), TrainedModel.open(networks.path))
        return _kept(setup, side, records, fitted, handed, weight)


def records_of(job: Job, side: FeatureSide, noisy: NoisyLabels, threads: int = 1) -> LearnerRecords:
    """Return a feature party's training records and their noisy labels for a learner; judges are those of training."""
    if not isinstance(side.features, Features):
        raise LearnerError(_TABLES_ONLY)
    training = job.training
    judges = held_out(len(side.train), training.validation or HELD_OUT, training.seed)
    targets = NoisyTargets(noisy.mechanism, noisy.draws)
    return LearnerRecords(side.features, side.train, targets, judges, training.seed, threads)


def _with_networks(records: LearnerRecords, fitted: Fitted, networks: TrainedModel) -> tuple[Fitted, float]:
    """Return what the judges say of the committee of networks and a learner, and the weight of the networks in it."""
    judged = [networks.kept_predictions("validation"), fitted.judged]
    weight, rest = weights_by_judges(records, judged)
    setting = f"{weight:.2f} networks, {rest:.2f} {fitted.name} ({fitted.setting})"
    together = mixed([(weight, judged[0]), (rest, judged[1])])
    return judged_by(records, AUTO, setting, fitted.model, together), weight


@dataclass(frozen=True)
class LearnedNetwork:
    """The model of a run, as what predicts new records: a learner's, or its mixture with networks."""

    party: str
    model: LearnedModel
    weight: float = 0.0
    """That of the networks; the rest is the model's."""
    halves: TrainedHalves | None = None
    """The networks, if they have a weight."""

    @classmethod
    def load(cls, run: RunFolder, party: str, weight: float) -> LearnedNetwork:
        """Return what is kept in a run's folder of a party."""
        folder = run.party(party)
        halves = TrainedModel.open(folder / _NETWORKS / WITH_JUDGES).halves() if weight else None
        return cls(party, load(folder / _MODEL), weight, halves)

    @property
    def networks(self) -> int:
        """How many networks predict together."""
        return 1 if self.halves is None else self.halves.networks

    @property
    def parties(self) -> tuple[str, ...]:
        """The party whose records are needed."""
        return (self.party,)

    def part(self, inputs: Mapping[str, Features | Inputs], rows: Mapping[str, Rows]) -> Probabilities:
        """Return the probabilities of some records; `rows` are theirs in the party's inputs."""
        held = inputs[self.party]
        if not isinstance(held, Features):
            raise LearnerError(_TABLES_ONLY)
        learned = self.model.probabilities(held.take(rows[self.party]))
        if self.halves is None:
            return learned
        return mixture([(self.weight, self.halves.part(inputs, rows)), (1 - self.weight, learned)])


def learned_network(run: RunFolder) -> LearnedNetwork | None:
    """Return what a learner has made of a run; None where the run trained a network."""
    for party in feature_party_names(run.job().data):
        found = learned_result(run, party)
        if found is not None:
            return LearnedNetwork.load(run, party, found.networks)
    return None


def require_no_learner(run: RunFolder, therefore: str) -> None:
    """Raise if a learner's model is in this folder, and say what follows for who expects a network there."""
    if run.path.is_dir() and any(run.path.glob(f"*/{_RESULT}")):
        raise LearnerError(f"{run.path}: holds the model of a learner, not a network; {therefore}")


def _finished(run: RunFolder, party: str, learner: str) -> LearnResult | None:
    if run.label.exists():
        raise LearnerError(f"{run.path}: holds a run that trains a network; choose another --out")
    found = learned_result(run, party)
    if found is not None and found.learner != learner:
        raise LearnerError(f"{run.path}: holds a model of {found.learner}, not of {learner}; choose another --out")
    return found


def learned_result(run: RunFolder, party: str) -> LearnResult | None:
    """Return what a learner has made of a run at this party; None where none has, or is not done yet."""
    path = run.party(party) / _RESULT
    if not path.exists():
        return None
    try:
        return LearnResult.from_dict(json.loads(read_plain(path)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LearnerError(f"{path}: is damaged ({error})") from error


def _kept(
    setup: RunSetup,
    side: FeatureSide,
    records: LearnerRecords,
    fitted: Fitted,
    handed: ReleasedLabels,
    weight: float = 0.0,
) -> LearnResult:
    """Write everything that the run keeps, the result at last."""
    run, judges = setup.run, records.targets.take(records.held_out)
    save(fitted.model, run.party(side.party) / _MODEL)
    if side.encoder is not None:
        run.save_encoder(side.party, side.encoder)
    tested, order = side.ids.take(pa.array(side.test)), np.arange(len(side.test), dtype=np.int64)
    scores = Scores(class_names(setup.job.data))
    network = LearnedNetwork.load(run, side.party, weight)
    for rows in in_parts(side.test, network.networks):
        scores.add(network.part({side.party: records.features}, {side.party: rows}))
    scores.write(run.path / TEST_SCORES, NewRecords(TEST_SCORES, tested, None, order, tested))
    result = LearnResult(
        out=str(run.path),
        learner=fitted.name,
        setting=fitted.setting,
        mechanism=judges.mechanism.name,
        epsilon=handed.labels.epsilon,
        delta=handed.labels.delta,
        total_epsilon=handed.spent.epsilon,
        private=handed.spent.private,
        records=len(records.rows),
        effective_labels=records.targets.effective_labels(),
        judges=len(judges),
        evidence=fitted.evidence,
        validation=noisy_validation(judges.mechanism, judges.draws, fitted.judged),
        networks=weight,
    )
    write_atomically(run.party(side.party) / _RESULT, json.dumps(result.as_dict()).encode())
    return result
