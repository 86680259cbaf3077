"""Files of scores: ids and scores as they are, and those of a local head marked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv
from pyarrow import parquet as pq

from tpsl.model.records import NewRecords, Scores, place_of_scores

IDS = pa.array(["b", "a", "007"])
AS_TEXT = csv.ConvertOptions(column_types={"id": pa.string()})
TWO, THREE = ("no", "yes"), ("none", "few", "many")


def written(path: Path, class_names: tuple[str, ...] = TWO, *, local_head: bool = False) -> np.ndarray:
    rng = np.random.default_rng(1)
    found = rng.random(3) if class_names == TWO else rng.dirichlet([1, 1, 1], 3)
    scores = Scores(class_names)
    scores.add(found.astype(np.float32))
    rows = np.arange(3, dtype=np.int64)
    scores.write(place_of_scores(path, local_head=local_head), NewRecords("new.csv", IDS, None, rows, IDS))
    return found.astype(np.float32)


def read(path: Path) -> pa.Table:
    return pq.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path, convert_options=AS_TEXT)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("class_names", [TWO, THREE])
def test_ids_and_scores_are_in_the_file(tmp_path: Path, ending: str, class_names: tuple[str, ...]) -> None:
    expected = written(tmp_path / f"scores.{ending}", class_names)
    found = read(tmp_path / f"scores.{ending}")
    assert found.column_names[1:] == (["score"] if class_names == TWO else [f"score_{name}" for name in THREE])
    assert found["id"].to_pylist() == IDS.to_pylist()
    scores = np.stack([column.to_numpy().astype(np.float32) for column in found.columns[1:]], axis=1)
    assert (scores == expected.reshape(3, -1)).all()


def test_scores_of_a_local_head_are_marked(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for ending in ("csv", "parquet"):
        written(tmp_path / f"scores.{ending}", local_head=True)
    marked = tmp_path / "NOT-PRIVATE-scores.parquet"
    assert sorted(tmp_path.iterdir()) == [marked.with_suffix(".csv"), marked]
    assert b"NOT PRIVATE" in pq.read_schema(marked).metadata[b"tpsl"]
