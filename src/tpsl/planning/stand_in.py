"""Records to rehearse with: those of the job where they are public or drawn anyway, invented ones in place of tables.

The tables of a rehearsal have the columns of the job's, with values drawn from the first records of a party's file
where that is within reach, and invented ones where it is not. Labels of tables are always invented: a plan reads none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.config import LabelFile, OwnData, SyntheticData, TableData, TableFile
from tpsl.data.dataset import load_feature_party, load_label_party
from tpsl.progress import Progress, no_progress
from tpsl.tables import DataError
from tpsl.tables.locations import Location, files_of, is_there
from tpsl.tables.pages import BLOCK_ROWS
from tpsl.tables.reading import dialect_of, is_parquet, new_table, read_blocks, rows_in_parquet
from tpsl.training.job import Job
from tpsl.training.local import Local, own_data
from tpsl.transport.peers import LABEL_PARTY

INVENTED_CATEGORIES = 10_000
"""Values of each column of categories whose file is not here, the first ones more frequent, as in logs of clicks."""
_RECORDS_OF_A_UNIT = 10
_SECONDS_A_YEAR = 365 * 86_400


def planned_job(job: Job, local: Mapping[str, Local]) -> Job:
    """Return the job with the files of the parties' local files in it."""
    for party, own in local.items():
        job = own_data(job, party, own.data, own.alignment)
    return job


def records_of(job: Job, local: Mapping[str, Local], progress: Progress = no_progress) -> int:
    """Return how many records a job has, by what is within reach."""
    data = job.data
    if isinstance(data, TableData):
        return _records_in_files(data, progress)
    if isinstance(data, SyntheticData):
        return data.rows
    if not isinstance(data, OwnData) and data.rows is not None:
        return data.rows
    source = local.get(LABEL_PARTY, Local()).own_parts().source(LABEL_PARTY)
    return len(load_label_party(data, progress, source=source).records.ids)


def stand_in(job: Job, rows: int, folder: Path, progress: Progress = no_progress) -> Job:
    """Return the job on n records, which are in the folder if they had to be written; a party's own source stays."""
    data = job.data
    if isinstance(data, OwnData):
        return job
    if not isinstance(data, TableData):
        return job.model_copy(update={"data": data.model_copy(update={"rows": rows})})
    files = [_written(file, data, rows, folder, progress) for file in (*data.features, data.label)]
    label = files.pop()
    changes = {"features": tuple(files), "label": label, "split": "random", "since": None, "alignment": None}
    return job.model_copy(update={"data": data.model_copy(update=changes)})


def field_counts(job: Job, local: Mapping[str, Local]) -> dict[str, int]:
    """Return how many numbers each of these parties holds of a record, where its records are a table."""
    found = {}
    for party, own in local.items():
        source = own.own_parts().source(party)
        if party == LABEL_PARTY:
            features: object = load_label_party(job.data, source=source).records.features
        else:
            features = load_feature_party(job.data, party, source=source).features
        shapes = (getattr(features, name, np.empty((0, 0))).shape for name in ("categorical", "numeric"))
        found[party] = sum(shape[1] for shape in shapes)
    return found


def _records_in_files(data: TableData, progress: Progress) -> int:
    for file in (*data.features, data.label):
        if _is_within_reach(file.path):
            blocks = read_blocks(file.path, [], dialect_of(file.path), progress=progress)
            return rows_in_parquet(file.path) or sum(block.rows for block in blocks)
    raise ValueError("no file of the job is within reach: say with --rows how many records it has")


def _written(file: TableFile, data: TableData, rows: int, folder: Path, progress: Progress) -> TableFile:
    """Write the table of one party and return where it is."""
    path = folder / (f"{file.party}.parquet" if _is_parquet(file.path) else f"{file.party}.csv")
    rng, values = np.random.default_rng(0), _Values(file)
    schema = pa.table(_columns(file, data, rng, values, range(1))).schema
    with new_table(path, schema) as writer:
        for start in range(0, rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, rows)
            writer.write_table(pa.table(_columns(file, data, rng, values, range(start, stop)), schema))
            progress(stop, rows, f"inventing records of {file.party}")
    changes: dict[str, Any] = {"path": path, "time": None, "keys": {}, "alignment": None}
    if isinstance(file, LabelFile):
        changes["label"] = file.label or "label"
    return file.model_copy(update=changes)


def _is_parquet(location: Location) -> bool:
    return is_parquet(files_of(location)[0].name if _is_within_reach(location) else str(location))


def _is_within_reach(location: Location) -> bool:
    """Return whether a table can be read here: another party's storage may not even answer."""
    try:
        return is_there(location)
    except DataError:
        return False


def _columns(
    file: TableFile, data: TableData, rng: np.random.Generator, values: _Values, records: range
) -> dict[str, Any]:
    """Return the columns of the records with these numbers, by name."""
    numbers = np.array(records)
    ids = pa.array(np.char.zfill(numbers.astype("U12"), 12))
    columns = {file.id: ids, **values.drawn(rng, len(numbers))}
    if isinstance(file, LabelFile):
        columns[file.label or "label"] = pa.array(rng.choice(np.array(data.class_names), len(numbers)))
        if file.unit is not None:
            columns.setdefault(file.unit, pa.array(numbers // _RECORDS_OF_A_UNIT))
    return columns


class _Values:
    """Values of the columns that features are made of."""

    def __init__(self, file: TableFile) -> None:
        self._invented: dict[str, Callable[[np.random.Generator, int], Any]] = {
            **dict.fromkeys(file.categorical, _categories),
            **dict.fromkeys(file.numeric, _numbers),
            **dict.fromkeys(file.dates, _dates),
        }
        self._first: dict[str, Any] = {}
        if self._invented and _is_within_reach(file.path):
            with suppress(StopIteration):
                block = next(read_blocks(file.path, list(self._invented), dialect_of(file.path)))
                self._first = block.columns

    def drawn(self, rng: np.random.Generator, count: int) -> dict[str, Any]:
        """Return n values of each column: of records of the file that are drawn at random, or invented ones."""
        if self._first:
            taken = pa.array(rng.integers(0, len(next(iter(self._first.values()))), count))
            return {name: values.take(taken) for name, values in self._first.items()}
        return {name: invent(rng, count) for name, invent in self._invented.items()}


def _categories(rng: np.random.Generator, count: int) -> Any:
    drawn: npt.NDArray[np.float64] = np.floor((INVENTED_CATEGORIES + 1) ** rng.random(count)) - 1
    return pa.array(drawn.astype(np.int64).astype(str))


def _numbers(rng: np.random.Generator, count: int) -> Any:
    return pa.array(rng.standard_normal(count))


def _dates(rng: np.random.Generator, count: int) -> Any:
    return pa.array(rng.integers(0, _SECONDS_A_YEAR, count), pa.timestamp("s"))
