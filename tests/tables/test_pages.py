"""How many records of a Parquet file are decoded at once: as many as fit, by what its pages say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.tables import DataError
from tpsl.tables.locations import files_of
from tpsl.tables.pages import BLOCK_ROWS, MOST_TEXT_BYTES, rows_at_once
from tpsl.tables.reading import read_blocks


def at_once(path: Path, *columns: str) -> list[int]:
    (file,) = files_of(path)
    with pq.ParquetFile(path) as content:
        return rows_at_once(file, content, list(columns))


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_short_texts_come_in_whole_blocks_and_long_ones_in_small_ones(
    tmp_path: Path, compression: str, version: str
) -> None:
    file = tmp_path / "records.parquet"
    texts = ["short", "x" * 4096] * 50_000
    table = pa.table({"short": ["a", "b"] * 50_000, "long": pa.array(texts).dictionary_encode()})
    pq.write_table(table, file, compression=compression, data_page_version=version, store_schema=False)
    assert at_once(file, "short") == [BLOCK_ROWS]
    assert at_once(file, "short", "long") == [BLOCK_ROWS // 8]
    blocks = list(read_blocks(file, ["long", "short"]))
    assert max(block.columns["long"].nbytes for block in blocks) <= MOST_TEXT_BYTES
    assert [text for block in blocks for text in block.columns["long"].to_pylist()] == texts


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"use_dictionary": False}, 32),
        ({"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}}, 32),
        ({"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}, 32),
        ({"use_dictionary": ["text"], "dictionary_pagesize_limit": 1 << 23}, 64),
    ],
    ids=["plain", "lengths first", "with the beginning of the one before", "dictionary"],
)
def test_however_a_text_is_written_it_counts_with_all_its_bytes(
    tmp_path: Path, options: dict[str, Any], most: int
) -> None:
    """500 texts of a MiB each, four in a page: 16 pages of them are 64 MiB."""
    file = tmp_path / "records.parquet"
    table = pa.table({"text": ["x" * (1 << 20)] * 500, "number": np.arange(500)})
    pq.write_table(table, file, compression="zstd", data_page_size=1, write_batch_size=4, **options)
    assert at_once(file, "text") == [most]
    assert at_once(file, "number") == [BLOCK_ROWS]


def test_a_large_page_is_read_in_few_blocks(tmp_path: Path) -> None:
    """Some writers put a whole row group into a page; the page is in memory then, so its texts may be, too."""
    file = tmp_path / "records.parquet"
    table = pa.table({"text": ["x" * 10_000] * 10_000})
    pq.write_table(table, file, compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    assert at_once(file, "text") == [BLOCK_ROWS]
    table = pa.table({"text": ["x" * 10_000] * 14_000})
    pq.write_table(table, file, compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    with pytest.raises(DataError, match=r"its pages unpack to 140,056,0.. bytes at once, more than 134,217,728"):
        at_once(file, "text")


def test_row_groups_are_counted_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "records.parquet"
    with pq.ParquetWriter(file, pa.schema([("text", pa.string())])) as writer:
        for text in ("short", "x" * (1 << 20), "short"):
            writer.write_table(pa.table({"text": [text] * 70_000 if text == "short" else [text] * 5}))
    few, many = min(at_once(file, "text")), max(at_once(file, "text"))
    assert at_once(file, "text") == [many, few, many] and (few, many) == (64, BLOCK_ROWS)
    assert sum(block.rows for block in read_blocks(file, ["text"])) == 140_005


def test_numbers_missing_values_and_files_without_records_are_read_as_ever(tmp_path: Path) -> None:
    file = tmp_path / "records.parquet"
    table = pa.table(
        {
            "number": pa.array([1, None, 3], pa.int32()),
            "text": ["a", None, "c"],
            "list": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.uint8(), 2)),
            "nothing": pa.nulls(3),
        }
    )
    pq.write_table(table, file)
    (block,) = read_blocks(file, table.column_names)
    assert {name: column.to_pylist() for name, column in block.columns.items()} == table.to_pydict()
    pq.write_table(table.slice(0, 0), file)
    with pytest.raises(DataError, match="has no records"):
        list(read_blocks(file, ["text"]))


def test_lists_of_texts_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"texts": [["a", "b"]]}), tmp_path / "records.parquet")
    with pytest.raises(DataError, match="lists are read of numbers"):
        list(read_blocks(tmp_path / "records.parquet", ["texts"]))


@pytest.mark.parametrize("seed", range(200))
def test_damaged_files_are_an_error_of_one_sentence_or_are_read(tmp_path: Path, seed: int) -> None:
    """Random bytes anywhere, in headers of pages, dictionaries and footers too."""
    file, random = tmp_path / "records.parquet", np.random.default_rng(seed)
    table = pa.table({"text": [f"record {number}" for number in range(50)] * 2, "number": np.arange(100)})
    pq.write_table(table, file, compression="zstd" if seed % 2 else "none", data_page_version=f"{1 + seed % 3 // 2}.0")
    content = bytearray(file.read_bytes())
    for at in random.integers(4, len(content) - 8, 1 + seed % 4):
        content[at] = random.integers(256)
    file.write_bytes(content)
    try:
        rows = sum(block.rows for block in read_blocks(file, ["text", "number"]))
    except DataError as error:
        assert str(file) in str(error) and "\n" not in str(error)
    else:
        assert rows <= 100
