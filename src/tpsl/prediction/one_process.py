"""Predicting new records where one process has the records and the halves of all parties."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tpsl.data.features import Features
from tpsl.data.source import Inputs
from tpsl.data.split import Rows
from tpsl.prediction.halves import PredictionError, Probabilities, TrainedHalves
from tpsl.prediction.local_head import load_embedder, load_predictor
from tpsl.prediction.records import NewRecords, require_same_records
from tpsl.prediction.scores import Scores
from tpsl.progress import Progress, no_progress


class WholeNetwork(Protocol):
    """All halves of a trained network, or of several."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties whose inputs are needed."""

    def part(self, inputs: Mapping[str, Features | Inputs], rows: Mapping[str, Rows]) -> Probabilities:
        """Return the probabilities of some records, computed at once; `rows` are theirs in each party's inputs."""


def load_all(run_path: Path, *, local_head: bool = False) -> TrainedHalves:
    """Return all halves of a run, as its saved encoders and factories describe them."""
    predictor = load_predictor(run_path, local_head=local_head)
    return TrainedHalves({party: load_embedder(run_path, party) for party in predictor.widths}, predictor)


def predict_records(
    network: WholeNetwork,
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
    for rows in zip(*(records[party].parts() for party in network.parties), strict=True):
        scores.add(network.part(inputs, dict(zip(network.parties, rows, strict=True))))
        done += len(rows[0])
        progress(done, total, "predicting")
    return scores
