"""New records of one party, encoded as the run has learned to encode its table, and their scores.

Parties that hold the same ids take the records in the same order without talking to each other, whatever the order of
their files: sorted by id, as in training, or as an alignment says. Scores are written in the order of the own file.
Memory is bounded as in training: many records, and their scores, lie on disk.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.aligned import UNKNOWN, alignment_of
from tpsl.data.config import OwnData, TableData, TableFile
from tpsl.data.data_frames import Frame
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.data.out_of_core import RowStack, release_pages
from tpsl.data.own import source_ids, source_inputs
from tpsl.data.party_file import PartyFile, encode_file, encode_frame, numbered_ids
from tpsl.data.preparation import id_column
from tpsl.data.rawtable import same_ids_or_error, sorted_by_id
from tpsl.model.predictors import PredictionError, Probabilities
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import Progress, no_progress
from tpsl.run.local import own_data, require_party
from tpsl.run.own_parts import Factory
from tpsl.run.run_folder import NOT_PRIVATE, RunFolder
from tpsl.run.schedule import in_parts
from tpsl.spill import Array
from tpsl.tables import DataError
from tpsl.tables.columns import Place, record_ids
from tpsl.tables.locations import Location, location_of
from tpsl.tables.reading import dialect_of, new_table

Source: TypeAlias = str | Path | Sequence[Mapping[str, Any]] | Frame
"""A table: a path or URL as commands take it, a data frame, or records as JSON has them; or package.module:name."""

_ROWS_AT_ONCE = 1 << 16
_MARK = {b"tpsl": b"NOT PRIVATE: scores of a head that was trained on true labels; they stay with the label party"}


# ---- records


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
    run: RunFolder, party: str, source: Source, alignment: Path | None = None, progress: Progress = no_progress
) -> NewRecords:
    """Read a party's new records: from CSV or Parquet files, or in memory; as a factory if the job's data are own.

    Unseen categories, missing values, another order of columns, further columns and no label are all fine; a column
    that is missing is an error. Records in memory without a column of ids are numbered. With an `alignment`, a folder
    that `tpsl align` made of this file, the records are those that the parties have in common, in its order.
    """
    job = run.job()
    require_party(job, party)
    if isinstance(job.data, OwnData):
        if not isinstance(source, str) or ":" not in source:
            raise PredictionError(f"{source}: the records of this job are the parties' own, as package.module:name")
        given = Factory(factory=source).make(f"the source of {party}")
        own_inputs = source_inputs(party, given) if has_features(run, party) else None
        return _sorted(source, source_ids(party, given), own_inputs)
    if not isinstance(source, str | Path):
        own_id = _file_of(job.data, party).id if isinstance(job.data, TableData) else "id"
        return _sorted(f"the records of {party}", *_in_memory(run, party, own_id, source))
    path = location_of(source, Path.cwd())
    own_ids = id_column(job.data, _file_of(job.data, party), path) if isinstance(job.data, TableData) else "id"
    ids, features = _read_file(run, party, path, own_ids, progress)
    if alignment is None:
        return _sorted(str(source), ids, features)
    data = own_data(job, party, path, alignment).data
    assert isinstance(data, TableData)  # `own_data` refuses an alignment of other data
    found = alignment_of(data, _file_of(data, party), progress)
    assert found is not None
    if not len(found):
        raise PredictionError(f"{alignment}: the parties have no record in common")
    return NewRecords(str(source), ids, features, found.rows, found.ids())


def numbered_records(count: int) -> NewRecords:
    """Return records of which nothing is known but their number, from 1, as they come from a feature party."""
    ids = numbered_ids(1, count + 1)
    return NewRecords("records without a list", ids, None, np.arange(count, dtype=np.int64), ids)


def require_same_records(records: Mapping[str, NewRecords]) -> None:
    """Raise, with counts and an example, unless all parties have the same records in the same common order."""
    first, *others = records.values()
    for other in others:
        same_ids_or_error(first.name, first.common_ids, other.name, other.common_ids)


def has_features(run: RunFolder, party: str) -> bool:
    """Whether a party has features in a run; the label party need have none."""
    return party != LABEL_PARTY or (run.label / "bottom.safetensors").exists()


def _sorted(name: str, ids: Any, inputs: Features | Inputs | None) -> NewRecords:
    order = sorted_by_id(name, ids)
    rows = np.arange(len(ids), dtype=np.int64) if order is None else order
    return NewRecords(name, ids, inputs, rows, ids if order is None else ids.take(pa.array(rows)))


def _read_file(
    run: RunFolder, party: str, path: Location, own_ids: str | None, progress: Progress
) -> tuple[Any, Features | None]:
    """Return ids and features of all records of a file; the features of many records lie on disk."""
    if not has_features(run, party):
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


def _in_memory(run: RunFolder, party: str, id: str, given: Any) -> tuple[Any, Features]:
    """Return ids and features of a data frame, or of mappings from column to value."""
    if not len(given):
        raise DataError(f"the records of {party}: there are none")
    encoder = run.encoder(party)
    if not isinstance(given, Sequence):
        ids, features = encode_frame(encoder, given, id)
    else:
        features = encoder.encode_records(given)
        if all(id in record for record in given):
            ids = record_ids(pa.array([record[id] for record in given]), Place(f"the records of {party}", id))
        else:
            ids = numbered_ids(1, len(given) + 1)
    return ids.cast(pa.large_string()), features


def _file_of(data: TableData, party: str) -> TableFile:
    return next((file for file in data.features if file.party == party), data.label)


# ---- scores


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


class Scores:
    """Scores of records in the common order, part by part.

    There is one column, `score`, for two classes, and `score_NAME` for each of more.
    """

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self.columns = ("score",) if len(class_names) == 2 else tuple(f"score_{name}" for name in class_names)
        self._stack = RowStack(np.float32, len(self.columns))

    def add(self, probabilities: Probabilities) -> None:
        """Take in the next records: `[n]`, or `[n, k]`."""
        self._stack.add(probabilities)

    def array(self, records: NewRecords) -> Probabilities:
        """Return the scores of these records in the order of the own file: `[n]`, or `[n, k]`."""
        found: Array = self._stack.finish()[records.in_file_order()]
        return found[:, 0] if len(self.columns) == 1 else found

    def write(self, path: Path, records: NewRecords) -> None:
        """Write the scores of these records, all of which were added; the file has its name once it is complete.

        Those of a local head are marked NOT PRIVATE in the name of the file and, in a Parquet file, in its metadata.
        """
        found = self._stack.finish()
        metadata = _MARK if NOT_PRIVATE in path.name else None
        fields = [("id", pa.string()), *((name, pa.float32()) for name in self.columns)]
        schema, positions = pa.schema(fields, metadata), records.in_file_order()
        with new_table(path, schema) as writer:
            for start in range(0, len(positions), _ROWS_AT_ONCE):
                chosen: Rows = positions[start : start + _ROWS_AT_ONCE]
                columns = [pa.array(np.ascontiguousarray(column)) for column in found[chosen].T]
                writer.write_table(pa.table([records.ids_at(chosen).cast(pa.string()), *columns], schema=schema))
                release_pages(found)


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


def place_of_scores(path: Path, *, local_head: bool) -> Path:
    """Return where scores are written that were asked for at `path`: marked, if a local head made them.

    A folder that others can enter is refused for those.
    """
    if not local_head:
        return path
    folder = path.parent
    if folder.is_dir() and folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PredictionError(
            f"{folder}: others can enter this folder, and scores of a local head are NOT PRIVATE: "
            "choose a folder of mode 700"
        )
    return path if NOT_PRIVATE in path.name else path.with_name(f"{NOT_PRIVATE}-{path.name}")
