import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.data import out_of_core
from tpsl.data.dataset import Dataset, load, load_feature_party, load_label_party
from tpsl.data.true_labels import reveal
from tpsl.spill import cache_folder
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
    first, second = (load(converted.model_copy(update=options)) for _ in range(2))
    assert same(first, of_file)
    assert same(second, of_file)
    assert is_mapped(second.feature_parties["feature"].categorical)
    assert is_mapped(second.feature_parties["feature"].numeric)
    assert len(list(cache_folder().iterdir())) == 1


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


@pytest.fixture
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)


@pytest.mark.usefixtures("_everything_is_large")
def test_what_is_kept_is_read_and_not_computed_again(criteo: CriteoData) -> None:
    told: list[str] = []
    for min_count, encoded in ((3, True), (3, False), (4, True)):
        told.clear()
        load(criteo.model_copy(update={"min_count": min_count}), lambda done, total, what: told.append(what))
        assert ("encoding train.txt" in told) == encoded


@pytest.mark.usefixtures("_everything_is_large")
def test_a_file_that_was_changed_is_encoded_again(criteo: CriteoData, criteo_lines: Lines) -> None:
    first = load(criteo)
    assert same(first, load(criteo))
    criteo.path.write_text("\n".join(criteo_lines(300, 1)))
    assert not same(first, load(criteo))


@pytest.mark.usefixtures("_everything_is_large")
def test_writing_to_mapped_features_does_not_change_what_is_kept(criteo: CriteoData) -> None:
    before = load(criteo)
    with pytest.raises(ValueError, match="read-only"):
        load(criteo).feature_parties["feature"].numeric[:] = 7
    assert same(load(criteo), before)


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


@pytest.mark.usefixtures("_everything_is_large")
@pytest.mark.parametrize("task", ["reading", "encoding"])
def test_an_interrupted_encoding_leaves_nothing_behind(criteo: CriteoData, task: str) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if what.startswith(task):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_feature_party(criteo, progress=stop)
    assert not cache_folder().exists() or not list(cache_folder().iterdir())


def test_another_folder_is_refused(criteo: CriteoData, avazu: AvazuData, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"feature\.parquet: there is no such file"):
        load_feature_party(CriteoData(path=tmp_path))
    folder = convert(avazu, tmp_path / "folder").path
    with pytest.raises(DataError, match=r"feature\.parquet: there is no column 'I1'; the columns are"):
        load_feature_party(CriteoData(path=folder))
    with pytest.raises(DataError, match=r"feature\.parquet: rows: 301 records were asked for, there are 300"):
        load_feature_party(AvazuData(path=folder, rows=301))
    whole = (folder / "feature.parquet").read_bytes()
    for cut in (whole[: len(whole) // 2], whole[:100] + bytes(len(whole) // 2) + whole[100 + len(whole) // 2 :]):
        (folder / "feature.parquet").write_bytes(cut)
        with pytest.raises(DataError, match=r"feature\.parquet: cannot be read, it is damaged") as error:
            load(AvazuData(path=folder))
        assert "\n" not in str(error.value)


def test_parties_with_different_records_are_told_apart(criteo: CriteoData, tmp_path: Path) -> None:
    converted = convert(criteo, tmp_path / "folder")
    label = pq.read_table(converted.path / "label.parquet")
    pq.write_table(label[:-1], converted.path / "label.parquet")
    with pytest.raises(DataError, match="1 of 300 are only in the first"):
        load(converted)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, criteo_lines: Lines) -> None:
    code = """
import resource, sys
from pathlib import Path
from tpsl_research import clicklog
from tpsl_research.clicklog import CriteoData
from tpsl.tables import reading
reading.BLOCK_BYTES = 1 << 20
peaks = []
def listen(what, done, total): peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
clicklog.convert(CriteoData(path=Path(sys.argv[1])), Path(sys.argv[2]), listen)
print(len(peaks), peaks[-1] - peaks[len(peaks) // 2])
"""
    piece = pa.compress("".join(line + "\n" for line in criteo_lines(2000)).encode(), codec="zstd", asbytes=True)
    (tmp_path / "train.txt.zst").write_bytes(piece * 220)
    command = [sys.executable, "-c", code, str(tmp_path / "train.txt.zst"), str(tmp_path / "folder")]
    blocks, growth = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(blocks) > 50
    assert int(growth) * unit < 20e6  # the second half of the records takes 45 MB as typed columns
