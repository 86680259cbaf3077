"""New records of one party: encoded as the run has learned to encode its table, in memory bounded as in training.

Parties that hold the same ids take the records in the same order without talking to each other, whatever the order of
their files: sorted by id, as in training, or as an alignment says. Scores are written in the order of the own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.aligned import UNKNOWN, alignment_of
from tpsl.data.config import DataConfig, OwnData, TableData, TableFile
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.data.out_of_core import RowStack
from tpsl.data.own import source_ids, source_inputs
from tpsl.data.party_file import PartyFile, encode_file, numbered_ids
from tpsl.data.preparation import id_column
from tpsl.data.rawtable import same_ids_or_error, sorted_by_id
from tpsl.model.half_loading import PredictionError, has_label_features
from tpsl.net.peers import LABEL_PARTY
from tpsl.progress import Progress, no_progress
from tpsl.tables.locations import Location, location_of
from tpsl.tables.reading import dialect_of
from tpsl.training.local import own_data, require_party
from tpsl.training.own_parts import Factory
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import in_parts


@dataclass(frozen=True, eq=False)
class NewRecords:
    """One party's new records; `name` is the file or source that errors name."""

    name: str
    ids: Any = field(repr=False)  # pa.Array of text
    """The party's own ids, in the order of its file."""
    inputs: Features | Inputs | None = field(repr=False)
    """None at a label party without features of its own."""
    order: Rows = field(repr=False)
    """The row of the own file for each record, in the common order; `UNKNOWN` for one that this party has not."""
    common_ids: Any = field(repr=False)  # pa.Array of text
    """What all parties call the records, in the common order."""

    def __len__(self) -> int:
        return len(self.order)

    def parts(self, networks: int = 1) -> list[Rows]:
        """Return the rows of the own file in the common order, in parts of the size that is predicted at once."""
        return in_parts(self.order, networks)

    def numbered(self) -> NewRecords:
        """Return the same records in the order of the file, each with its number for a common id."""
        numbers = numbered_records(len(self.ids))
        return replace(self, order=numbers.order, common_ids=numbers.common_ids)

    def in_file_order(self) -> Rows:
        """Return the positions in the common order of the records as the own file has them, unknown ones at last."""
        last = np.iinfo(np.int64).max
        return np.argsort(np.where(self.order == UNKNOWN, last, self.order), kind="stable")

    def ids_at(self, positions: Rows) -> Any:
        """Return this party's own ids at these positions of the common order, the common id of an unknown record."""
        rows = self.order[positions]
        own = self.ids.take(pa.array(np.maximum(rows, 0)))
        return pc.if_else(pa.array(rows != UNKNOWN), own, self.common_ids.take(pa.array(positions)))


def read_records(
    run: RunFolder, party: str, source: str, alignment: Path | None = None, progress: Progress = no_progress
) -> NewRecords:
    """Read a party's new records from CSV or Parquet files, or from `package.module:name` if the job's data are own.

    Unseen categories, missing values, another order of columns, further columns and no label are all fine; a column
    that is missing is an error. With an `alignment`, a folder that `tpsl align` made of this file, the records are
    those that the parties have in common, in its order.
    """
    job, path = run.job(), location_of(source, Path.cwd())
    require_party(job, party)
    if isinstance(job.data, OwnData):
        if ":" not in source:
            raise PredictionError(f"{source}: the records of this job are the parties' own, as package.module:name")
        given = Factory(factory=source).make(f"the source of {party}")
        own_inputs = source_inputs(party, given) if _has_features(run, party) else None
        return _sorted(source, source_ids(party, given), own_inputs)
    ids, features = _read_file(run, party, path, progress)
    if alignment is None:
        return _sorted(source, ids, features)
    data = own_data(job, party, path, alignment).data
    assert isinstance(data, TableData)  # `own_data` refuses an alignment of other data
    found = alignment_of(data, _file_of(data, party), progress)
    assert found is not None
    if not len(found):
        raise PredictionError(f"{alignment}: the parties have no record in common")
    return NewRecords(source, ids, features, found.rows, found.ids())


def numbered_records(count: int) -> NewRecords:
    """Return records of which nothing is known but their number, from 1, as they come from a feature party."""
    ids = numbered_ids(1, count + 1)
    return NewRecords("records without a list", ids, None, np.arange(count, dtype=np.int64), ids)


def require_same_records(records: Mapping[str, NewRecords]) -> None:
    """Raise, with counts and an example, unless all parties have the same records in the same common order."""
    first, *others = records.values()
    for other in others:
        same_ids_or_error(first.name, first.common_ids, other.name, other.common_ids)


def _sorted(name: str, ids: Any, inputs: Features | Inputs | None) -> NewRecords:
    order = sorted_by_id(name, ids)
    rows = np.arange(len(ids), dtype=np.int64) if order is None else order
    return NewRecords(name, ids, inputs, rows, ids if order is None else ids.take(pa.array(rows)))


def _read_file(run: RunFolder, party: str, path: Location, progress: Progress) -> tuple[Any, Features | None]:
    """Return ids and features of all records of a file; the features of many records lie on disk."""
    own_ids = _id_column(run.job().data, party, path)
    if not _has_features(run, party):
        file = PartyFile(path, {}, own_ids, dialect=dialect_of(path), foreign=True)  # a list of ids may be the others'
        known = file.read(label=False, progress=progress)
        return known.ids.cast(pa.large_string()), None
    encoder = run.encoder(party)
    categorical = RowStack(np.int32, len(encoder.categories))
    numeric = RowStack(np.float32, len(encoder.numeric_fields))
    ids = []
    for block_ids, features in encode_file(encoder, path, own_ids, progress):
        ids.append(block_ids.cast(pa.large_string()))
        categorical.add(features.categorical)
        numeric.add(features.numeric)
    return pa.concat_arrays(ids), encoder.features(categorical.finish(), numeric.finish())


def _has_features(run: RunFolder, party: str) -> bool:
    return party != LABEL_PARTY or has_label_features(run)


def _id_column(data: DataConfig, party: str, path: Location) -> str | None:
    """Return the column of a party's own ids, if its file has one."""
    return id_column(data, _file_of(data, party), path) if isinstance(data, TableData) else "id"


def _file_of(data: TableData, party: str) -> TableFile:
    return next((file for file in data.features if file.party == party), data.label)
