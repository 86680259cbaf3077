"""Predicting new records where one process has the records and the halves of all parties."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tpsl.data.dataset import Dataset, feature_party_names
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.model.half_loading import PredictionError, Probabilities, TrainedHalves, has_label_features
from tpsl.model.local_head import load_embedder, load_predictor
from tpsl.model.records import NewRecords, require_same_records
from tpsl.model.scores import Scores
from tpsl.net.peers import LABEL_PARTY
from tpsl.progress import Progress, no_progress
from tpsl.training.own_parts import OwnParts
from tpsl.training.run_folder import RunFolder


def load_halves(
    run_path: Path,
    feature_parties: Mapping[str, Features | Inputs],
    label_inputs: Features | Inputs | None,
    own: Mapping[str, OwnParts] | None = None,
) -> TrainedHalves:
    """Return the halves of a finished run whose parties have inputs like these; their values are not looked at.

    The folder must hold every party's half: one process trained the run, or the folders were put together. A party's
    own parts are made by the factories that are noted there; `own` replaces the notes of parties that gave objects.
    """
    run, own = RunFolder(run_path), own or {}
    top = load_predictor(run_path, own=own.get(LABEL_PARTY))
    inputs = {}
    for name in feature_party_names(run.job().data):
        if name not in feature_parties:
            raise PredictionError(
                f"{run_path}: was trained with the feature party {name!r}, whose features are missing"
            )
        inputs[name] = feature_parties[name]
    if has_label_features(run) != (label_inputs is not None):
        has = "has no" if label_inputs is not None else "has"
        raise PredictionError(f"{run_path}: the label party {has} features of its own in this run")
    if label_inputs is not None:
        inputs[LABEL_PARTY] = label_inputs
    bottoms = {name: load_embedder(run_path, name, own.get(name), inputs=held) for name, held in inputs.items()}
    return TrainedHalves(bottoms, top)


def predict(
    run_path: Path, data: Dataset, rows: Rows | None = None, own: Mapping[str, OwnParts] | None = None
) -> Probabilities:
    """Return what a finished run predicts for these rows of a data set (all, if None), in their order.

    Probabilities of class 1 for two classes (`[n]`), of each class for k (`[n, k]`). Guarantee: true labels are not
    read, neither those of `data` nor what a local head learned from them. `own` are parts that were given as objects.
    """
    halves = load_halves(run_path, data.feature_parties, data.label_features, own)
    label = {} if data.label_features is None else {LABEL_PARTY: data.label_features}
    return halves.probabilities({**data.feature_parties, **label}, rows)


class Network(Protocol):
    """What predicts records of these parties: all halves of a network, or whatever else a run has learned."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties whose inputs are needed."""

    @property
    def networks(self) -> int:
        """How many networks predict together, which bounds the records at once."""

    def part(self, inputs: Mapping[str, Features | Inputs], rows: Mapping[str, Rows]) -> Probabilities:
        """Return the probabilities of some records; `rows` are theirs in each party's inputs."""


def predict_records(
    network: Network,
    records: Mapping[str, NewRecords],
    class_names: tuple[str, ...],
    progress: Progress = no_progress,
) -> Scores:
    """Return the scores of records that all parties have, in their common order.

    Guarantee: bit for bit what the parties compute together over a network, because the parts are the same.
    """
    if sorted(records) != sorted(network.parties):
        raise PredictionError(
            f"records of {', '.join(network.parties)} are needed, those of {', '.join(records) or 'nobody'} are given"
        )
    require_same_records(records)
    inputs = {party: found.inputs for party, found in records.items() if found.inputs is not None}
    scores, done, total = Scores(class_names), 0, len(records[network.parties[0]])
    for rows in zip(*(records[party].parts(network.networks) for party in network.parties), strict=True):
        scores.add(network.part(inputs, dict(zip(network.parties, rows, strict=True))))
        done += len(rows[0])
        progress(done, total, "predicting")
    return scores
