"""A table is the same in one file or many, on this machine or in object storage."""

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tpsl.tables import DataError
from tpsl.tables.locations import Location, Url, files_of, is_there, is_url, location_of
from tpsl.tables.reading import column_names, dialect_of, read_blocks

WHOLE = pa.table({"id": [f"r{number:03}" for number in range(90)], "size": np.arange(90)})
PARTS = [WHOLE[:40], WHOLE[40:41], WHOLE[41:]]


def csv_of(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(table, sink)
    return bytes(sink.getvalue())


def parquet_of(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=7)
    return bytes(sink.getvalue())


def files(ending: str) -> dict[str, bytes]:
    content = csv_of if ending.startswith(".csv") else parquet_of
    return {f"2026/part-{number}{ending}": content(part) for number, part in enumerate(PARTS)}


def rows_at(location: Location) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for block in read_blocks(location, ["id", "size"], dialect_of(location)):
        assert block.first == len(found) + 1
        found += zip(block.columns["id"].to_pylist(), map(int, block.columns["size"].to_pylist()), strict=True)
    return found


@pytest.fixture(params=["here", "s3", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function that puts files somewhere and returns what a person writes for the place."""

    def put(content: dict[str, bytes]) -> str:
        if request.param == "s3":
            return str(request.getfixturevalue("object_storage").put(content))
        if request.param == "memory":
            fsspec.filesystem("memory").pipe({f"/{tmp_path.name}/{name}": data for name, data in content.items()})
            return f"memory://{tmp_path.name}"
        for name, data in content.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        return str(tmp_path)

    return put


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_many_files_are_one_table(place: Any, ending: str) -> None:
    folder = place({**files(ending), "2026/_SUCCESS": b"", "2026/.draft/part-9.csv": b"no table"})
    expected = rows_at(location_of(f"{folder}/2026/part-0{ending}"))
    assert len(expected) == 40
    for text in (folder, f"{folder}/2026/", f"{folder}/2026/part-*{ending}", f"{folder}/**/part-[0-2]{ending}"):
        location = location_of(text)
        assert rows_at(location) == list(zip(WHOLE["id"].to_pylist(), range(90), strict=True)), text
        assert column_names(location) == ["id", "size"]
    if isinstance(location, Path):
        assert len(rows_at(location_of(f"{folder}/2026/part-?{ending}"))) == 90
    assert len(rows_at(location_of(f"{folder}/2026/part-[!0]{ending}"))) == 50


def test_faults_name_the_file_and_the_row_in_it(place: Any) -> None:
    folder = place({"a.csv": b"id,size\nx,1\n", "b.csv": b"id,size\ny,2\nz,3,4\n", "c.tsv": b"id\tsize\nz\t3\n"})
    with pytest.raises(DataError, match=r"b\.csv: cannot be read, row 2: 3 columns instead of 2$"):
        rows_at(location_of(f"{folder}/*.csv"))
    with pytest.raises(DataError, match=r"the files of a table are of one kind, not .*b\.csv and .*c\.tsv$"):
        dialect_of(location_of(folder))
    for text in ("none.csv", "none-*.csv", "none"):
        assert not is_there(location_of(f"{folder}/{text}"))
        with pytest.raises(DataError, match=r"none[^:]*: there is no such file$"):
            files_of(location_of(f"{folder}/{text}"))
    folder = place({"more/notes.md": b"about the files", "more/a.csv": b"id\n1\n"}) + "/more"
    with pytest.raises(DataError, match=r"notes\.md: the ending of a file tells its kind, and must be one of"):
        dialect_of(location_of(folder))


def test_a_location_is_what_a_person_wrote() -> None:
    assert location_of("s3://bucket/a b/*.csv") == Url("s3://bucket/a b/*.csv")
    assert location_of(Path("s3://bucket/a")) == Url("s3://bucket/a")  # pathlib makes one slash of two
    assert location_of("file:///data/a.csv") == Path("/data/a.csv")
    assert location_of("a.csv", Path("/data")) == Path("/data/a.csv")
    assert location_of("/x/a.csv", Path("/data")) == Path("/x/a.csv")
    assert not is_url("package.module:name") and not is_url("C:/table.csv") and is_url("gs://bucket/x")


def test_an_empty_folder_is_there_and_named(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    assert is_there(tmp_path) and not is_there(tmp_path / "none")
    with pytest.raises(DataError, match=r": the folder has no files$"):
        files_of(tmp_path)


def test_a_name_with_signs_of_a_pattern_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "part[1].csv").write_text("id\nx\n")
    (tmp_path / "part1.csv").write_text("id\ny\n")
    assert [file.name for file in files_of(tmp_path / "part[1].csv")] == [str(tmp_path / "part[1].csv")]


def test_credentials_are_never_shown_nor_taken_from_a_path() -> None:
    url = Url("s3://name:secret@bucket/x.csv?access_token=secret")
    assert str(url) == repr(url) == "s3://…@bucket/x.csv"
    with pytest.raises(DataError, match=r"^s3://…@bucket/x\.csv: a path holds no password; name and key come from"):
        files_of(url)
    for place in ("name:se/c+ret==@bucket", "name:1s@e/cret@bucket", ":secret/@bucket"):  # signs that real keys have
        url = Url(f"abfs://{place}/x.csv")
        assert str(url) == "abfs://…@bucket/x.csv"
        with pytest.raises(DataError, match=r"^abfs://…@bucket/x\.csv: a path holds no password"):
            files_of(url)
    assert str(Url("hdfs://host:8020/a@b.csv")) == "hdfs://host:8020/a@b.csv"
    with pytest.raises(DataError, match=r"^nobody://bucket: neither PyArrow nor fsspec can open it"):
        files_of(Url("nobody://bucket"))


def test_a_pattern_may_be_of_files_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("id\nx\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.csv").write_text("id\ny\n")
    monkeypatch.chdir(tmp_path)
    for text, found in (
        ("*.csv", ["a"]),
        ("./[ab].csv", ["a"]),
        ("**/*.csv", ["a", "b"]),
        ("d*/*.csv", ["b"]),
        ("d*/**", ["b"]),
    ):
        assert [Path(file.name).stem for file in files_of(location_of(text))] == found, text


def test_a_pattern_that_means_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"part-\[9-0\]\.csv: there is no such file"):
        files_of(tmp_path / "part-[9-0].csv")
    with pytest.raises(DataError, match=r"part-\*\*9\.csv: cannot be reached \(.*'\*\*' can only be"):
        files_of(tmp_path / "part-**9.csv")


def test_hidden_names_count_below_the_folder_that_is_named(place: Any) -> None:
    folder = place(dict.fromkeys((".cache/_x/a.csv", ".cache/_x/_b.csv", ".cache/_x/deep/.c.csv"), b"id\n1\n"))
    for text in (f"{folder}/.cache/_x", f"{folder}/.cache/_x/"):
        assert [Path(file.name).name for file in files_of(location_of(text))] == ["a.csv"]
    assert [Path(file.name).name for file in files_of(location_of(f"{folder}/.cache/_x/*"))] == ["_b.csv", "a.csv"]


def test_storage_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-key")
    with pytest.raises(DataError, match=r"^s3://bucket/x\.csv: cannot be reached \(") as found:
        files_of(Url("s3://bucket/x.csv"))
    assert "hidden-key" not in str(found.value)
