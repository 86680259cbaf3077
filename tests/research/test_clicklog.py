import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from tpsl.data import out_of_core
from tpsl.data.dataset import Dataset, load, load_feature_party, load_label_party
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError, reading
from tpsl_research.clicklog import AvazuData, ClickData, CriteoData, convert

Lines = Callable[..., list[str]]


@pytest.fixture
def criteo(tmp_path: Path, criteo_lines: Lines) -> CriteoData:
    path = tmp_path / "train.txt"
    path.write_text("\n".join(criteo_lines(300)))
    return CriteoData(path=path, min_count=3)


@pytest.fixture
def avazu(tmp_path: Path, avazu_lines: Lines) -> AvazuData:
    path = tmp_path / "train.csv"
    path.write_text("\n".join(avazu_lines(300)))
    return AvazuData(path=path, min_count=3)


def same(one: Dataset, other: Dataset) -> bool:
    mine, theirs = one.feature_parties["feature"], other.feature_parties["feature"]
    encoded = np.array_equal(mine.categorical, theirs.categorical) and np.array_equal(mine.numeric, theirs.numeric)
    names = (mine.categorical_fields, mine.numeric_fields) == (theirs.categorical_fields, theirs.numeric_fields)
    split = np.array_equal(one.train, other.train) and np.array_equal(one.test, other.test)
    labels = np.array_equal(reveal(one.labels), reveal(other.labels)) and one.ids.equals(other.ids)
    return encoded and names and split and labels and mine.embedding_rows == theirs.embedding_rows


def is_mapped(array: npt.NDArray[np.generic]) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


@pytest.mark.parametrize("source", ["criteo", "avazu"])
@pytest.mark.parametrize(
    "options", [{}, {"split": "random", "rows": 173}, {"categories": "hash", "hash_buckets": 99}, {"min_count": 40}]
)
def test_a_converted_folder_loads_as_the_file_does(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    options: dict[str, object],
) -> None:
    monkeypatch.setattr(reading, "BLOCK_ROWS", 64)  # several batches, which are not the blocks of the text
    monkeypatch.setattr(reading, "BLOCK_BYTES", 30_000)
    config: ClickData = request.getfixturevalue(source)
    converted = convert(config, tmp_path / "new" / "folder")
    of_file = load(config.model_copy(update=options))
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)
    found = load(converted.model_copy(update=options))
    assert same(found, of_file)
    assert is_mapped(found.feature_parties["feature"].categorical)


def test_each_party_needs_only_its_own_file(criteo: CriteoData, tmp_path: Path) -> None:
    both = load(criteo)
    converted = convert(criteo, tmp_path / "folder")
    assert "label" not in pq.read_schema(converted.path / "feature.parquet").names
    (converted.path / "feature.parquet").rename(tmp_path / "feature.parquet")
    assert np.array_equal(reveal(load_label_party(converted).labels), reveal(both.labels))
    with pytest.raises(DataError, match=r"feature\.parquet: there is no such file"):
        load_feature_party(converted)
    (converted.path / "label.parquet").unlink()
    (tmp_path / "feature.parquet").rename(converted.path / "feature.parquet")
    found = load_feature_party(converted)
    assert np.array_equal(found.features.categorical, both.feature_parties["feature"].categorical)
    assert found.ids.equals(both.ids)


def test_progress_is_told_in_bytes(criteo: CriteoData, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    convert(criteo, tmp_path / "folder", lambda done, total, what: told.append((what, done, total)))
    size = criteo.path.stat().st_size
    assert told[-1] == ("reading train.txt", size, size)


def test_an_error_leaves_nothing_behind(avazu: AvazuData, tmp_path: Path) -> None:
    content = avazu.path.read_text().splitlines()
    avazu.path.write_text("\n".join([*content, content[5]]))
    with pytest.raises(DataError, match=r"train\.csv: id \d+ stands in row 5 and in row 301"):
        convert(avazu, tmp_path / "folder")
    assert list((tmp_path / "folder").iterdir()) == []
    with pytest.raises(DataError, match=r"train\.csv.*: cannot be written"):
        convert(avazu, avazu.path)
