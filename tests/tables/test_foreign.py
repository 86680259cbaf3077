"""Files of another party that unpack to more than memory has: refused with a sentence, before memory is taken."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tpsl.handover.card import CARD, LABELS, Card, write_card
from tpsl.handover.labels_file import file_digest
from tpsl.mechanisms import randomized_response
from tpsl.tables import DataError
from tpsl.tables.reading import MOST_EXPANSION, read_foreign
from tpsl.vault import Spent

MOST_MEBIBYTES = 1024
KIB, MIB = 1 << 10, 1 << 20


def write(path: Path, ids: pa.Array, outcomes: pa.Array | None = None, times: int = 1, **options: Any) -> None:
    """Write ids, outcomes and scores, `times` one after the other."""
    outcomes = np.zeros(len(ids), np.uint8) if outcomes is None else outcomes
    table = pa.table({"id": ids, "outcome": outcomes, "score": np.zeros(len(ids), np.float32)})
    described = {"compression": "zstd", "store_schema": False, "write_statistics": False, **options}
    with pq.ParquetWriter(path, table.schema, **described) as writer:
        for _ in range(times):
            writer.write_table(table, row_group_size=len(table))


def repeated(text: str, times: int) -> pa.Array:
    """One text many times, as a dictionary."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int32)), pa.array([text]))


def integer(number: int) -> bytes:
    """An integer as the footer of a Parquet file has it: zigzag, seven bits a byte."""
    left, found = number << 1, bytearray()
    while left > 127:
        found.append(left & 127 | 128)
        left >>= 7
    return bytes(found) + bytes([left])


def lie(path: Path, number: int, instead: int) -> None:
    """Replace a number wherever the footer says it."""
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - length : -8]
    assert integer(number) in footer
    footer = footer.replace(integer(number), integer(instead))
    path.write_bytes(content[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def one_long_text(path: Path) -> None:
    write(path, repeated("x" * MIB, 1_000_000))


def rather_long_texts(path: Path) -> None:
    write(path, repeated("x" * 16 * KIB, 1_000_000))


def ids_that_are_allowed(path: Path) -> None:
    write(path, repeated("x" * KIB, 10_000_000))


def rows_of_a_constant(path: Path) -> None:
    write(path, repeated("a", 10_000_000), times=8)


def many_columns(path: Path) -> None:
    columns = {"id": pa.array(["a"]), "outcome": pa.array([0], pa.uint8())}
    table = pa.table(columns | {f"c{number}": columns["outcome"] for number in range(100_000)})
    pq.write_table(table, path, compression="none", store_schema=False, use_dictionary=False)


def a_page_that_nobody_announced(path: Path) -> None:
    write(path, pa.array(["y" * 450 * MIB]), use_dictionary=False, data_page_size=1 << 30)
    lie(path, pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size, 100)


def rows_that_are_not_there(path: Path) -> None:
    write(path, pa.array(["a", "b", "c"] * 777))
    lie(path, 2331, 1 << 40)


def one_list_without_end(path: Path) -> None:
    values = pa.array(np.zeros(80_000_000, np.uint8))
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    write(path, pa.array(["a"]), lists)


BOMBS = {
    "a long text a million times": one_long_text,
    "16 KiB a million times": rather_long_texts,
    "a KiB ten million times": ids_that_are_allowed,
    "rows of a constant": rows_of_a_constant,
    "columns": many_columns,
    "a page that the footer hides": a_page_that_nobody_announced,
    "a number of rows that lies": rows_that_are_not_there,
    "a list": one_list_without_end,
}

READ = """
import os, resource, sys
from pathlib import Path

resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))  # this machine is not to be filled by what a test finds
kind, path = sys.argv[1], Path(sys.argv[2])
try:
    if kind == "labels":
        from tpsl.handover.labels_file import read_handed_over
        read_handed_over(path, 2)
    elif kind == "card":
        from tpsl.handover.card import read_card
        read_card(path, 2, None)
    elif kind == "ids":
        from tpsl.handover.giving import ids_of_table
        ids_of_table(path, "id", 1000)
    print("read")
except ValueError as error:
    print(type(error).__name__, error)
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(peak.split()[1]) >> 10, flush=True)
os._exit(0)  # threads of PyArrow that still read ahead are not waited for
"""


def refused(kind: str, path: Path) -> str:
    """Read a file in a process of its own; return its one sentence, if its memory was bounded."""
    ended = subprocess.run([sys.executable, "-c", READ, kind, path], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    *lines, peak = ended.stdout.splitlines()
    assert int(peak) < MOST_MEBIBYTES
    (sentence,) = lines
    assert "realloc" not in sentence and "alloc of size" not in sentence, "memory was asked for"
    return sentence


def in_a_process(make: Callable[[Path], None], path: Path) -> Path:
    """Make a file in a process that ends, with the memory that making it takes."""
    maker = multiprocessing.get_context("fork").Process(target=make, args=(path,))
    maker.start()
    maker.join()
    assert maker.exitcode == 0
    return path


def handed(folder: Path, records: int) -> None:
    """Write a card that fits the file beside it, so that this is read."""
    spent = Spent(1.0, 0.0, True)
    card = Card(randomized_response(1.0), 1, True, spent, records, "aa", file_digest(folder / LABELS), "cc")
    write_card(card, folder / CARD, None)


@pytest.mark.parametrize("bomb", BOMBS)
def test_handed_over_labels_that_unpack_to_gigabytes_take_little_memory(tmp_path: Path, bomb: str) -> None:
    file = in_a_process(BOMBS[bomb], tmp_path / "labels.parquet")
    assert file.stat().st_size < 32 * MIB
    handed(tmp_path, 1 << 40)
    assert refused("labels", tmp_path).startswith(("DataError ", "CardError "))


@pytest.mark.parametrize("make", [one_long_text, ids_that_are_allowed], ids=["a long text", "texts of a KiB"])
def test_lists_of_a_feature_party_take_little_memory(tmp_path: Path, make: Any) -> None:
    file = in_a_process(make, tmp_path / "list.parquet")
    assert refused("ids", file).startswith(("DataError ", "VaultError "))


def a_line_without_end(path: Path) -> None:
    """Four gigabytes without a line's end, of which nothing lies on the disk."""
    path.write_bytes(b"id,score\n")
    with path.open("r+b") as file:
        file.truncate(4 << 30)


def compressed(line: bytes, gigabytes: int) -> Callable[[Path], None]:
    def written(path: Path) -> None:
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(b"id,score\n")
            for _ in range(gigabytes * 64):
                stream.write(line * (16 * MIB // len(line)))

    return written


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("scores.csv", a_line_without_end),
        ("scores.csv.zst", compressed(b"x", 1)),
        ("scores.csv.zst", compressed(b"1,1\n", 1)),
        ("scores.csv", lambda path: path.write_bytes(b"id,score" + b",c" * 30 * MIB + b"\n")),
        ("scores.csv", lambda path: path.write_bytes(b"id,score" + b"," * 2 * MIB + b"\n" + b"," * 2 * MIB + b"\n")),
    ],
    ids=["a line", "a compressed line", "lines that compress", "a header", "columns"],
)
def test_text_that_has_no_end_takes_little_memory(tmp_path: Path, name: str, make: Any) -> None:
    assert refused("ids", in_a_process(make, tmp_path / name)).startswith(("DataError ", "VaultError "))


def test_a_card_of_nested_lists_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text('{"content": {"card": [' + "[]," * (10 * MIB) + "0]}}")
    assert refused("card", tmp_path / "card.json").startswith("CardError ")


def test_an_honest_list_of_many_records_is_read(tmp_path: Path) -> None:
    """Ids that compress best: numbers one after the other, behind a long text that they share."""
    ids = pc.binary_join_element_wise("x" * 40, pa.array(np.arange(2_000_000)).cast(pa.string()), "")
    outcomes = np.random.default_rng(1).integers(0, 2, len(ids)).astype(np.uint8)
    pq.write_table(pa.table({"id": ids, "outcome": outcomes}), tmp_path / "list.parquet", compression="zstd")
    blocks = list(read_foreign(tmp_path / "list.parquet", ["id", "outcome"]))
    assert pa.concat_arrays([block.columns["id"] for block in blocks]).equals(ids)
    unpacked = sum(column.nbytes for block in blocks for column in block.columns.values()) + 8 * len(ids)
    assert 2 * unpacked < MOST_EXPANSION * (tmp_path / "list.parquet").stat().st_size


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_texts_come_as_texts_however_they_are_stored(tmp_path: Path, kind: pa.DataType) -> None:
    ids = ["b", "a" * 1024, "b", None]
    pq.write_table(pa.table({"id": pa.array(ids).cast(kind)}), tmp_path / "list.parquet")
    (block,) = read_foreign(tmp_path / "list.parquet", ["id"])
    assert block.columns["id"].type == pa.string() and block.columns["id"].to_pylist() == ids
    pq.write_table(pa.table({"id": pa.array([*ids, "a" * 1025]).cast(kind)}), tmp_path / "list.parquet")
    with pytest.raises(DataError, match=r"column 'id' has a text of 1,025 bytes, and 1,024 are allowed"):
        list(read_foreign(tmp_path / "list.parquet", ["id"]))


def test_what_a_file_states_about_itself_is_not_believed(tmp_path: Path) -> None:
    """The helper of these tests does change what PyArrow reads in the footer."""
    rows_that_are_not_there(tmp_path / "list.parquet")
    assert pq.ParquetFile(tmp_path / "list.parquet").metadata.num_rows == 1 << 40
