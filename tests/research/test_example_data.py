import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.parquet as pq
import pytest

from tpsl.data.config import FlightsData, SyntheticData
from tpsl.data.dataset import Dataset, load
from tpsl.data.features import Features
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError
from tpsl_research.example_data import write_flights, write_synthetic


def same_features(one: Features | None, other: Features | None) -> bool:
    if one is None or other is None:
        return one is other
    arrays = np.array_equal(one.categorical, other.categorical) and np.array_equal(one.numeric, other.numeric)
    names = (one.categorical_fields, one.numeric_fields) == (other.categorical_fields, other.numeric_fields)
    return arrays and names and one.embedding_rows == other.embedding_rows


def same_rows(one: Dataset, other: Dataset) -> bool:
    labels = np.array_equal(reveal(one.labels), reveal(other.labels)) and one.ids.equals(other.ids)
    return labels and np.array_equal(one.train, other.train) and np.array_equal(one.test, other.test)


@pytest.mark.parametrize(("layout", "split", "rows"), [("all", "random", 10_000), ("natural", "chronological", 30_000)])
def test_written_flights_load_as_the_built_in_ones(
    tmp_path: Path, layout: Literal["all", "natural"], split: str, rows: int
) -> None:
    written = write_flights(tmp_path, layout, rows=rows)
    from_files = load(written.config.model_copy(update={"split": split}))
    built_in = load(FlightsData.model_validate({"layout": layout, "split": split, "rows": rows}))
    assert same_rows(from_files, built_in)
    assert same_features(from_files.feature_parties["feature"], built_in.feature_parties["feature"])
    assert same_features(from_files.label_features, built_in.label_features)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["airline.parquet", "airport.parquet"]
    assert "label" not in pq.read_schema(tmp_path / "airport.parquet").names


def test_all_flights_are_written_if_no_number_is_given(tmp_path: Path) -> None:
    written = write_flights(tmp_path)
    assert written.facts == {"rows": 327_346}
    for name in ("airport", "airline"):
        assert pq.read_metadata(tmp_path / f"{name}.parquet").num_rows == 327_346


def test_written_flights_of_five_classes(tmp_path: Path) -> None:
    written = write_flights(tmp_path, "all", "delay5", rows=5000)
    assert written.config.classes == 5
    assert pq.read_schema(tmp_path / "airline.parquet").names == ["id", "scheduled_departure", "label"]
    assert set(pq.read_table(tmp_path / "airline.parquet", columns=["label"])["label"].to_pylist()) == set(range(5))


@pytest.mark.parametrize("classes", [2, 4])
def test_written_synthetic_records_are_those_of_loading(tmp_path: Path, classes: int) -> None:
    config = SyntheticData(rows=70_000, classes=classes, split="chronological", categorical_fields=5)
    written = write_synthetic(tmp_path / "new" / "folder", config)
    from_files, drawn = load(written.config), load(config)
    assert same_rows(from_files, drawn)
    assert written.facts["rows"] == len(drawn)
    if classes == 2:
        assert written.facts["positive_rate"] == reveal(drawn.labels).mean()
    numeric = from_files.feature_parties["feature"].numeric
    correlation = np.corrcoef(numeric[:, 0], drawn.feature_parties["feature"].numeric[:, 0])[0, 1]
    assert correlation > 0.999999


def test_a_longer_file_begins_with_the_shorter_one(tmp_path: Path) -> None:
    for rows in (1000, 2000):
        write_synthetic(tmp_path / str(rows), SyntheticData(rows=rows))
    for name in ("feature.parquet", "label.parquet"):
        short, long = (pq.read_table(tmp_path / str(rows) / name) for rows in (1000, 2000))
        assert long[:1000].equals(short)


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from tpsl.data.config import SyntheticData
from tpsl_research.example_data import write_synthetic
peaks = []
def listen(what, done, total): peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
write_synthetic(Path(sys.argv[1]), SyntheticData(rows=8 * 65536), listen)
print(peaks[-1] - peaks[3])
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    growth = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    unit = 1 if sys.platform == "darwin" else 1024
    assert growth * unit < 15e6  # the four chunks after the fourth take 41 MB encoded


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"feature\.parquet: cannot be written"):
        write_synthetic(tmp_path / "file", SyntheticData(rows=100))


def test_an_interrupted_file_does_not_take_the_name(tmp_path: Path) -> None:
    def stop(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_synthetic(tmp_path, SyntheticData(rows=100_000), progress=stop)
    assert list(tmp_path.iterdir()) == []
