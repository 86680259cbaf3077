"""The scores of records, as a file: ids in the order of the own file, and a score or one column for each class.

Scores of a local head are marked NOT PRIVATE in the name of the file and, in a Parquet file, in its metadata, and are
written only into a folder that nobody else can enter.
"""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pyarrow as pa

from tpsl.data.order import Rows
from tpsl.data.out_of_core import RowStack, release_pages
from tpsl.model.half_loading import PredictionError, Probabilities
from tpsl.model.records import NewRecords
from tpsl.tables.reading import new_table
from tpsl.training.run_folder import NOT_PRIVATE

_ROWS_AT_ONCE = 1 << 16
_MARK = {b"tpsl": b"NOT PRIVATE: scores of a head that was trained on true labels; they stay with the label party"}


class Scores:
    """Scores of records in the common order, part by part; many of them lie on disk.

    There is one column, `score`, for two classes, and `score_NAME` for each of more.
    """

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self.columns = ("score",) if len(class_names) == 2 else tuple(f"score_{name}" for name in class_names)
        self._stack = RowStack(np.float32, len(self.columns))

    def add(self, probabilities: Probabilities) -> None:
        """Take in the next records: `[n]`, or `[n, k]`."""
        self._stack.add(probabilities)

    def write(self, path: Path, records: NewRecords) -> None:
        """Write the scores of these records, all of which were added; the file has its name once it is complete."""
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
