"""The feature party's side of a hand-over: what it learns alone from handed-over labels, and scores new records with.

A learner besides the network leaves in the folder of its run:

RUN/PARTY/learner.safetensors   the model (`tpsl.handover.learners.load`)
RUN/PARTY/networks/             a search for networks that are in one ensemble with the learner, if there was one
RUN/PARTY/learned.json          what it is, and what noisy labels of the hold-out say of it; written at last
RUN/PARTY/encoder/              how the party's table was encoded
RUN/test_scores.parquet         scores of the test records, for the label party to evaluate
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tpsl.data.config import TableData
from tpsl.data.dataset import Dataset, class_names, feature_party_names
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.data.sides import FeatureSide
from tpsl.files import for_json
from tpsl.handover.card import CardError
from tpsl.handover.labels_file import read_handed_over
from tpsl.handover.learner import Fitted, LearnedModel, LearnerError, LearnerRecords
from tpsl.handover.learners import ENSEMBLE, LEARNERS, fit, load, mixed, save, weights_by_hold_out
from tpsl.handover.objective import NoisyTargets
from tpsl.model.predictors import Probabilities, TrainedHalves, mixture
from tpsl.model.records import Network, NewRecords, Scores, place_of_scores, predict_records, read_records
from tpsl.model.trained import WITH_JUDGES, TrainedModel
from tpsl.progress import Progress, no_progress
from tpsl.run.alone import require_alone, train_alone
from tpsl.run.evaluation import Validation, noisy_validation
from tpsl.run.job import Job
from tpsl.run.job_sections import HELD_OUT
from tpsl.run.local import Local
from tpsl.run.observer import Observer, ProgressBar
from tpsl.run.result import Epsilon, TrainResult
from tpsl.run.run_folder import RunFolder, read_note, write_note
from tpsl.run.schedule import held_out, in_parts
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import ReleasedLabels
from tpsl.select.candidates import TuneResult
from tpsl.select.search import space_for, train_with_hold_out, tune
from tpsl.vault import NoisyLabels

TEST_SCORES = "test_scores.parquet"
AUTO = "auto"
"""What the ensemble of networks and a learner is called."""
_MODEL, _NETWORKS, _RESULT = "learner.safetensors", "networks", "learned.json"
_CLEAR = 3.0
"""Nats: labels that are e^3 times as likely."""
_TABLES_ONLY = "a learner other than the network reads tables, and the job's data are the party's own"


@dataclass(frozen=True)
class LearnResult:
    """What came of a learner; no true label has a part in any number."""

    out: str
    learner: str
    setting: str
    """What the hold-out chose, in words."""
    mechanism: str
    epsilon: Epsilon
    """The ε of the noisy labels; whatever is fitted on them, it stays the same."""
    delta: float
    total_epsilon: Epsilon
    """The largest ε that any of the records has spent, as far as the card says."""
    private: bool
    records: int
    effective_labels: float
    """About how many clean labels their noisy labels are worth."""
    held_out: int
    """Records of these that were kept apart to choose."""
    evidence: float
    """How much more likely their noisy labels are than under the shares of the classes alone, in nats."""
    validation: Validation
    """What their noisy labels say of the same learner and setting, fitted without them."""
    networks: float = 0.0
    """The weight of networks in their ensemble with the learner."""

    @property
    def reliable(self) -> bool:
        """Whether the hold-out can tell the model from the shares of the classes."""
        return self.evidence > _CLEAR

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data, flat."""
        content = asdict(self)
        found: dict[str, Any] = for_json(content | content.pop("validation"))
        return found


def learn(setup: RunSetup, party: str, local: Local, labels: Path, authority: Path | None = None) -> TrainResult:
    """Train a job's network at its only feature party on handed-over `labels`, a file or its folder.

    An interrupted run goes on where it stopped. Guarantee: the weights and predictions are, bit for bit, those of split
    training with the vault that the labels come from. The likelihood is that of the card's table, which must be the
    job's. With an `authority` the card must be signed by the label party whose certificate it has made.
    """
    require_alone(setup.job, setup.start)
    setup = replace(setup, job=setup.job.with_labels_handed_over())
    with setup.opened(
        list(setup.own),
        lambda: setup.run.common_result([party]) is not None,
        lambda setup: setup.load_features(party, local),
        moved=True,
    ) as opened:
        if opened is None:
            return setup.run.finished_result()
        setup, side = opened
        handed = labels_for(setup, side, labels, authority)
        shown = ProgressBar(setup.watching, setup.job.training.epochs)
        return train_alone(setup.watched_by(Observer()), side, handed, at_top=shown)


def tune_alone(setup: RunSetup, party: str, local: Local, labels: Path, authority: Path | None = None) -> TuneResult:
    """Train our space of configurations on handed-over `labels`, a file or its folder; noisy labels choose.

    Guarantee: candidates, weights and predictions are those of `tune` with the vault that the labels come from, to the
    last bit. There are no true labels here, and so no test metrics.
    """
    require_alone(setup.job, setup.start)
    side = setup.load_features(party, local)
    data = Dataset.of_one(side, class_names(setup.job.data))
    return tune(setup, vault=labels_for(setup, side, labels, authority), data=data)


def learn_with(
    learner: str, setup: RunSetup, party: str, local: Local, labels: Path, authority: Path | None = None
) -> LearnResult:
    """Fit a learner at a job's only feature party on handed-over `labels`, a file or its folder.

    Guarantee: features and model stay here, and the model is post-processing of the labels. Of the job count its data,
    its privacy, `training.seed` and `training.validation`. A finished run is only read. `AUTO` makes one ensemble of
    the networks of our space, for which all of the job counts, boosted trees and logistic regression; noisy labels
    weigh them, and all are trained once more with the hold-out.
    """
    if learner != AUTO:
        LEARNERS.get(learner)
    require_alone(setup.job, setup.start)
    for_networks, setup = setup, replace(setup, job=setup.job.with_labels_handed_over())
    with setup.run.started(setup.job, [party], moved=True):
        finished = _finished(setup.run, party, learner)
        if finished is not None:
            setup.say_finished()
            return finished
        side = setup.load_features(party, local)
        handed = labels_for(setup, side, labels, authority)
        records = records_of(setup.job, side, handed.labels, local.threads or 1)
        if learner != AUTO:
            return _kept(setup, side, records, handed, replace(fit(learner, records), name=learner))
        folder = RunFolder(setup.run.party(party) / _NETWORKS)
        networks = _searched(replace(for_networks, run=folder), side, handed)
        return _kept(setup, side, records, handed, *_with_networks(records, fit(ENSEMBLE, records), networks))


def labels_for(setup: RunSetup, side: FeatureSide, labels: Path, authority: Path | None = None) -> ReleasedLabels:
    """Return the handed-over labels of a feature party's training records, in their order, and what they have spent."""
    job = setup.job
    handed = read_handed_over(labels, job.classes, authority)
    card, agreed = handed.card, job.mechanism
    if (card.mechanism.digest, card.draws) != (agreed.digest, job.privacy.draws):
        raise CardError(
            f"{handed.path}: was released with {card.mechanism}, {card.draws} draw(s), and privacy in the job says "
            f"{agreed}, {job.privacy.draws} draw(s)"
        )
    named = job.data.label.label if isinstance(job.data, TableData) else None
    if None not in (card.label, named) and card.label != named:
        raise CardError(f"{handed.path}: has labels of {card.label!r}, and data.label.label in the job is {named!r}")
    try:
        noisy = handed.of(side.ids.take(pa.array(side.train)))
    except CardError as error:
        if not isinstance(job.data, TableData) or job.data.alignment is None:
            raise
        raise CardError(
            f"{error}; of aligned records the file has the label party's own ids: let the parties train the job "
            "together with training.exchange: labels, then noisy labels cross in the common order"
        ) from error
    setup.watching.notice(f"{len(noisy):,} noisy labels, released with {noisy.mechanism}")
    return ReleasedLabels(noisy, card.spent, handed.path)


def records_of(job: Job, side: FeatureSide, noisy: NoisyLabels, threads: int = 1) -> LearnerRecords:
    """Return a feature party's training records and their noisy labels for a learner; the hold-out is of training."""
    if not isinstance(side.features, Features):
        raise LearnerError(_TABLES_ONLY)
    training = job.training
    hold_out = held_out(len(side.train), training.validation or HELD_OUT, training.seed)
    targets = NoisyTargets(noisy.mechanism, noisy.draws)
    return LearnerRecords(side.features, side.train, targets, hold_out, training.seed, threads)


def _searched(setup: RunSetup, side: FeatureSide, handed: ReleasedLabels) -> TrainedModel:
    """Search for networks in the set-up's folder, and train them with the hold-out, too; return those of the search."""
    data = Dataset.of_one(side, class_names(setup.job.data))
    space = space_for(setup, data)
    found = tune(setup, space, vault=handed, data=data)
    train_with_hold_out(setup, space, [candidate.as_dict() for candidate in found.candidates], data, handed)
    return TrainedModel.open(setup.run.path)


def _with_networks(records: LearnerRecords, fitted: Fitted, networks: TrainedModel) -> tuple[Fitted, float]:
    """Return what noisy labels say of the ensemble of networks and a learner, and the weight of the networks in it."""
    predicted = [networks.kept_predictions("validation"), fitted.predicted]
    weight, rest = weights_by_hold_out(records, predicted)
    setting = f"{weight:.2f} networks, {rest:.2f} {fitted.name} ({fitted.setting})"
    together = mixed([(weight, predicted[0]), (rest, predicted[1])])
    return Fitted.of(records, AUTO, setting, fitted.model, together), weight


@dataclass(frozen=True)
class LearnedNetwork:
    """The model of a run, as what predicts new records: a learner's, or its mixture with networks."""

    parties: tuple[str, ...]
    """The one party whose records are needed."""
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
        return cls((party,), load(folder / _MODEL), weight, halves)

    @property
    def networks(self) -> int:
        """How many networks predict together."""
        return 1 if self.halves is None else self.halves.networks

    def part(self, inputs: Mapping[str, Features | Inputs], rows: Mapping[str, Rows]) -> Probabilities:
        """Return the probabilities of some records; `rows` are theirs in the party's inputs."""
        (party,) = self.parties
        held = inputs[party]
        if not isinstance(held, Features):
            raise LearnerError(_TABLES_ONLY)
        learned = self.model.probabilities(held.take(rows[party]))
        if self.halves is None:
            return learned
        return mixture([(self.weight, self.halves.part(inputs, rows)), (1 - self.weight, learned)])


def score_records(
    folder: Path,
    files: Mapping[str, str],
    out: Path,
    *,
    local_head: bool = False,
    aligned: Mapping[str, Path] | None = None,
    progress: Progress = no_progress,
) -> tuple[Path, NewRecords]:
    """Score the records of a table of each party with what a run or a search has made: networks, or a learner.

    Return where the scores are and the first party's records. Scores are in the order of the first table. The file is
    whole or absent; its name says so if they are NOT PRIVATE.
    """
    model = TrainedModel.open(folder)
    network: Network = _learned_network(model.run) or model.halves(local_head=local_head)
    place = place_of_scores(out, local_head=local_head)
    found = {
        party: read_records(model.run, party, file, (aligned or {}).get(party), progress)
        for party, file in files.items()
    }
    first = next(iter(found.values()))
    predict_records(network, found, class_names(model.run.job().data), progress).write(place, first)
    return place, first


def _learned_network(run: RunFolder) -> LearnedNetwork | None:
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
    return read_note(run.party(party) / _RESULT, LearnResult)


def _kept(
    setup: RunSetup,
    side: FeatureSide,
    records: LearnerRecords,
    handed: ReleasedLabels,
    fitted: Fitted,
    weight: float = 0.0,
) -> LearnResult:
    """Write everything that the run keeps, the result at last."""
    run, hold_out = setup.run, records.targets.take(records.held_out)
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
        mechanism=hold_out.mechanism.name,
        epsilon=handed.labels.epsilon,
        delta=handed.labels.delta,
        total_epsilon=handed.spent.epsilon,
        private=handed.spent.private,
        records=len(records.rows),
        effective_labels=records.targets.effective_labels(),
        held_out=len(hold_out),
        evidence=fitted.evidence,
        validation=noisy_validation(hold_out.mechanism, hold_out.draws, fitted.predicted),
        networks=weight,
    )
    write_note(run.party(side.party) / _RESULT, result)
    return result
