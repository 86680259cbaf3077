"""Writing the built-in data as two files, one for each party, for people who want to try two processes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data import flights, synthetic
from tpsl.data.config import FLIGHT_TASKS, FlightsData, LabelFile, SyntheticData, TableData, TableFile
from tpsl.data.party_file import numbered_ids
from tpsl.data.rawtable import RawTable
from tpsl.progress import Progress, no_progress
from tpsl.tables.reading import new_parquet

Facts = dict[str, float | int]
"""What is known about records."""

# Pairs of records whose probabilities share a bin count as ties; the AUC is off by less than one part in this many.
_BINS = 1 << 20


@dataclass(frozen=True)
class Written:
    """`config` reads the files that were written; `facts` says what is known about them."""

    config: TableData
    facts: Facts


def write_flights(
    folder: Path,
    layout: Literal["all", "natural"] = "natural",
    task: Literal["late", "delay5"] = "late",
    rows: int | None = None,
    progress: Progress = no_progress,
) -> Written:
    """Write `airport.parquet` (feature party) and `airline.parquet` (label party) into `folder`.

    Loading the returned configuration gives the same encoded features, labels and split as `FlightsData` with the
    same layout, task and rows does, also with `split` set to chronological.
    """
    chosen = FlightsData(layout=layout, task=task, rows=rows)
    airport, airline = flights.airport_table(chosen), flights.airline_table(chosen)
    airport_path, airline_path = folder / "airport.parquet", folder / "airline.parquet"
    for done, (path, raw) in enumerate(((airport_path, airport), (airline_path, airline))):
        order = raw.canonical_order()
        table = _flights_columns(raw if order is None else raw.take(order))
        with new_parquet(path, table.schema) as writer:
            writer.write_table(table, row_group_size=synthetic.CHUNK_ROWS)
        progress((done + 1) * len(raw), 2 * len(raw), "writing flights")
    roles = [
        {"categorical": tuple(raw.categorical), "numeric": tuple(raw.numeric), "time": "scheduled_departure"}
        for raw in (airport, airline)
    ]
    config = TableData(
        features=(TableFile.model_validate({"path": airport_path, **roles[0]}),),
        label=LabelFile.model_validate({"path": airline_path, **roles[1]}),
        classes=len(FLIGHT_TASKS[task][1]),
        test_fraction=FlightsData().test_fraction,
        split_seed=chosen.split_seed,
        min_count=flights.MIN_COUNT,
    )
    return Written(config, {"rows": len(airport)})


def write_synthetic(folder: Path, config: SyntheticData, progress: Progress = no_progress) -> Written:
    """Write `feature.parquet` and `label.parquet` into `folder`, in memory bounded by one chunk of records.

    The records are those that loading `config` gives, in the same order and, where the returned configuration is
    loaded, with the same split. The facts have the figures of the best possible classifier.
    """
    world = synthetic.World(config)
    feature_path, label_path = folder / "feature.parquet", folder / "label.parquet"
    feature_schema = pa.schema(
        [
            ("id", pa.string()),
            *((name, pa.float32()) for name in world.numeric_fields),
            *((name, pa.int32()) for name in world.categorical_fields),
        ]
    )
    label_schema = pa.schema([("id", pa.string()), ("label", pa.int32())])
    optimum = BayesOptimum(config.classes)
    positives = 0
    with (
        new_parquet(feature_path, feature_schema) as feature_writer,
        new_parquet(label_path, label_schema) as label_writer,
    ):
        for chunk in world.chunks(progress):
            ids = numbered_ids(chunk.first, chunk.first + len(chunk))
            columns = [*chunk.numeric.T, *chunk.categorical.T]
            feature_writer.write_batch(
                pa.record_batch([ids, *(pa.array(np.ascontiguousarray(c)) for c in columns)], schema=feature_schema)
            )
            labels = pa.array(chunk.labels.astype(np.int32))
            label_writer.write_batch(pa.record_batch([ids, labels], schema=label_schema))
            optimum.add(chunk.probabilities)
            positives += int((chunk.labels == 1).sum())
    facts: Facts = {"rows": config.rows, **optimum.facts()}
    if config.classes == 2:
        facts["positive_rate"] = positives / config.rows
    written = TableData(
        features=(
            TableFile(path=feature_path, categorical=world.categorical_fields, numeric=world.numeric_fields, time="id"),
        ),
        label=LabelFile(path=label_path, time="id"),
        classes=config.classes,
        split=config.split,
        test_fraction=config.test_fraction,
        split_seed=config.split_seed,
    )
    return Written(written, facts)


def _flights_columns(raw: RawTable) -> Any:
    departure = pc.utf8_slice_codeunits(raw.ids, 0, flights.DEPARTURE_LENGTH).cast(pa.timestamp("s"))
    columns = {"id": raw.ids, "scheduled_departure": departure, **raw.categorical}
    columns |= {name: pa.array(values, from_pandas=True) for name, values in raw.numeric.items()}
    if raw.labels is not None:
        columns["label"] = pa.array(raw.labels.astype(np.int32))
    return pa.table(columns)


class BayesOptimum:
    """Accumulates true class probabilities in bounded memory and states what the best classifier expects to reach."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._positives = np.zeros(_BINS)
        self._negatives = np.zeros(_BINS)
        self._rows = 0
        self._correct = 0.0
        self._log_loss = 0.0

    def add(self, probabilities: npt.NDArray[np.float64]) -> None:
        """Add records by their class probabilities [n, classes]."""
        self._rows += len(probabilities)
        self._correct += float(probabilities.max(axis=1).sum())
        self._log_loss -= float((probabilities * np.log(np.maximum(probabilities, 1e-300))).sum())
        if self._classes == 2:
            positive = probabilities[:, 1]
            bins = np.minimum((positive * _BINS).astype(np.int64), _BINS - 1)
            np.add.at(self._positives, bins, positive)
            np.add.at(self._negatives, bins, probabilities[:, 0])

    def facts(self) -> Facts:
        """Return `bayes_log_loss` and `bayes_accuracy`, and for two classes `bayes_auc`.

        `bayes_auc` is the expected number of correctly ordered pairs over the expected number of pairs (label 1,
        label 0), where record i is positive with its own probability.
        """
        facts: Facts = {
            "bayes_accuracy": self._correct / self._rows,
            "bayes_log_loss": self._log_loss / self._rows,
        }
        if self._classes == 2:
            below = np.cumsum(self._negatives) - self._negatives
            ordered = (self._positives * (below + self._negatives / 2)).sum()
            facts["bayes_auc"] = float(ordered / (self._positives.sum() * self._negatives.sum()))
        return facts
