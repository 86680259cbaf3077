"""The feature party's side of a hand-over: what it learns alone from handed-over labels, and scores new records with.

Trees leave in the folder of their run:

RUN/PARTY/trees.safetensors   the model (`tpsl.handover.trees.TreeModel`)
RUN/PARTY/learned.json        what noisy labels of the hold-out say of it; written at last
RUN/PARTY/encoder/            how the party's table was encoded
RUN/test_scores.parquet       scores of the test records, for the label party to evaluate
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tpsl.data.config import TableData
from tpsl.data.dataset import Dataset
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.data.sides import FeatureSide
from tpsl.files import for_json
from tpsl.handover.card import CardError
from tpsl.handover.labels_file import read_handed_over
from tpsl.handover.objective import NoisyTargets
from tpsl.handover.trees import LearnerError, LearnerRecords, TreeModel, fit
from tpsl.model.predictors import Probabilities
from tpsl.model.records import Network, NewRecords, Scores, place_of_scores, predict_records, read_records
from tpsl.model.trained import TrainedModel
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
from tpsl.select.search import tune
from tpsl.vault import NoisyLabels

TEST_SCORES = "test_scores.parquet"
_MODEL, _RESULT = "trees.safetensors", "learned.json"
_CLEAR = 3.0
"""Nats: labels that are e^3 times as likely."""
_TABLES_ONLY = "trees read tables, and the job's data are the party's own"


@dataclass(frozen=True)
class LearnResult:
    """What came of trees; no true label has a part in any number."""

    out: str
    rounds: int
    """Of boosting, as the hold-out chose."""
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
    """What their noisy labels say of as many rounds, fitted without them."""

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
    data = Dataset.of_one(side, setup.job.data.class_names)
    return tune(setup, vault=labels_for(setup, side, labels, authority), data=data)


def learn_trees(setup: RunSetup, party: str, local: Local, labels: Path, authority: Path | None = None) -> LearnResult:
    """Grow trees at a job's only feature party on handed-over `labels`, a file or its folder.

    Guarantee: features and model stay here, and the model is post-processing of the labels. Of the job count its data,
    its privacy, `training.seed` and `training.validation`. A finished run is only read.
    """
    require_alone(setup.job, setup.start)
    setup = replace(setup, job=setup.job.with_labels_handed_over())
    with setup.run.started(setup.job, [party], moved=True):
        if setup.run.label.exists():
            raise LearnerError(f"{setup.run.path}: holds a run that trains a network; choose another --out")
        finished = learned_result(setup.run, party)
        if finished is not None:
            setup.say_finished()
            return finished
        side = setup.load_features(party, local)
        handed = labels_for(setup, side, labels, authority)
        return _kept(setup, side, records_of(setup.job, side, handed.labels, local.threads or 1), handed)


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


@dataclass(frozen=True)
class GrownTrees:
    """The trees of a run, as what predicts new records."""

    parties: tuple[str, ...]
    """The one party whose records are needed."""
    model: TreeModel
    networks: int = 1

    def part(self, inputs: Mapping[str, Features | Inputs], rows: Mapping[str, Rows]) -> Probabilities:
        """Return the probabilities of some records; `rows` are theirs in the party's inputs."""
        (party,) = self.parties
        held = inputs[party]
        if not isinstance(held, Features):
            raise LearnerError(_TABLES_ONLY)
        return self.model.probabilities(held.take(rows[party]))


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
    network: Network = _trees(model.run) or model.halves(local_head=local_head)
    place = place_of_scores(out, local_head=local_head)
    found = {
        party: read_records(model.run, party, file, (aligned or {}).get(party), progress)
        for party, file in files.items()
    }
    first = next(iter(found.values()))
    predict_records(network, found, model.run.job().data.class_names, progress).write(place, first)
    return place, first


def _trees(run: RunFolder) -> GrownTrees | None:
    """Return what trees have learned; None where the run trained a network."""
    for party in run.job().data.feature_parties:
        if learned_result(run, party) is not None:
            return GrownTrees((party,), TreeModel.load(run.party(party) / _MODEL))
    return None


def require_no_learner(run: RunFolder, therefore: str) -> None:
    """Raise if a learner's model is in this folder, and say what follows for who expects a network there."""
    if run.path.is_dir() and any(run.path.glob(f"*/{_RESULT}")):
        raise LearnerError(f"{run.path}: holds the model of a learner, not a network; {therefore}")


def learned_result(run: RunFolder, party: str) -> LearnResult | None:
    """Return what a learner has made of a run at this party; None where none has, or is not done yet."""
    return read_note(run.party(party) / _RESULT, LearnResult)


def _kept(setup: RunSetup, side: FeatureSide, records: LearnerRecords, handed: ReleasedLabels) -> LearnResult:
    """Fit the records and write everything that the run keeps, the result at last."""
    fitted, run, hold_out = fit(records), setup.run, records.targets.take(records.held_out)
    fitted.model.save(run.party(side.party) / _MODEL)
    if side.encoder is not None:
        run.save_encoder(side.party, side.encoder)
    tested, order = side.ids.take(pa.array(side.test)), np.arange(len(side.test), dtype=np.int64)
    scores = Scores(setup.job.data.class_names)
    for rows in in_parts(side.test, 1):
        scores.add(fitted.model.probabilities(records.features.take(rows)))
    scores.write(run.path / TEST_SCORES, NewRecords(TEST_SCORES, tested, None, order, tested))
    result = LearnResult(
        out=str(run.path),
        rounds=fitted.rounds,
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
    )
    write_note(run.party(side.party) / _RESULT, result)
    return result
