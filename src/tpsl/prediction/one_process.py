"""Predicting new records where one process has the records and the halves of all parties."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tpsl.prediction.halves import PredictionError, TrainedHalves
from tpsl.prediction.model import TrainedModel
from tpsl.prediction.records import NewRecords, require_same_records
from tpsl.prediction.scores import Scores
from tpsl.progress import Progress, no_progress


def load_all(path: Path, *, local_head: bool = False) -> TrainedHalves:
    """Return all halves of a run or of a committee, as its saved encoders and factories describe them."""
    return TrainedModel.open(path).halves(local_head=local_head)


def predict_records(
    network: TrainedHalves,
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
