from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.data.clicklog.arrays import NewArray, NewTexts, kept, mapped, mapped_texts
from tpsl.data.errors import DataError


@pytest.mark.parametrize("sizes", [[], [0], [5], [3, 0, 100_000, 1]])
@pytest.mark.parametrize("width", [0, 1, 26])
def test_what_is_appended_is_read(tmp_path: Path, sizes: list[int], width: int) -> None:
    parts = [np.random.default_rng(size).random((size, width)).astype(np.float32) for size in sizes]
    with NewArray(tmp_path / "a.npy", np.float32, width) as array:
        for part in parts:
            array.append(part)
    whole = np.concatenate([np.empty((0, width), np.float32), *parts])
    for found in (mapped(tmp_path / "a.npy"), np.load(tmp_path / "a.npy")):
        assert found.dtype == np.float32
        assert np.array_equal(found, whole)


def test_an_array_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"")
    with pytest.raises(FileExistsError):
        NewArray(tmp_path / "a.npy", np.int32)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.text(max_size=4), max_size=6), max_size=4))
def test_texts_come_back(tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]]) -> None:
    folder = tmp_path_factory.mktemp("texts")
    with NewTexts(folder, "id") as texts:
        for part in parts:
            texts.append(pa.array(["before", *part], pa.string())[1:])  # a slice begins inside its buffers
    assert mapped_texts(folder, "id").to_pylist() == [text for part in parts for text in part]


def test_a_folder_is_filled_once_for_each_key(tmp_path: Path) -> None:
    filled: list[Path] = []
    places = [kept(tmp_path, "name", key, filled.append) for key in ({"a": 1}, {"a": 2}, {"a": 1})]
    assert places[0] == places[2] != places[1]
    assert len(filled) == 2
    assert sorted(tmp_path.iterdir()) == sorted(places[:2])


def test_a_faster_process_wins(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "mine").write_text("")
        if folder.parent.parent == tmp_path:
            place = kept(tmp_path / "elsewhere", "name", {}, lambda other: (other / "theirs").write_text("") and None)
            place.rename(tmp_path / place.name)

    (tmp_path / "elsewhere").mkdir()
    place = kept(tmp_path, "name", {}, write)
    assert [path.name for path in place.iterdir()] == ["theirs"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", place.name]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere/name-[0-9a-f]{16}: cannot be written"):
        kept(tmp_path / "nowhere", "name", {}, lambda folder: None)
