"""The pages of a Parquet file: how many of its records are decoded at once, so that memory stays bounded.

A few bytes of Parquet can stand for gigabytes: a page that compresses well, a dictionary with one long text and a run
of a million references to it, a text that shares its beginning with the one before. The sizes in the footer are what
the writer says; PyArrow takes memory for what the headers of the pages say, so these are read here, before it does.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tpsl.tables import DataError
from tpsl.tables.locations import StoredFile

BLOCK_ROWS = 1 << 16
"""Records that are decoded at a time, unless their texts are long."""
MOST_TEXT_BYTES = 1 << 26
"""What the texts of a block have at most, or twice the largest pages if that is more: they take that memory anyway."""
MOST_PAGE_BYTES = 1 << 27
"""What large pages have together: PyArrow unpacks one of each column at a time."""
LARGE_PAGE_BYTES = 1 << 23
"""A page with more is large; writers end them at 1 MiB or so."""
MOST_DICTIONARY_BYTES = 1 << 26
MOST_LISTED = 1 << 26
"""Numbers in the lists of one row group: a single record may have them all."""

_HEADER_BYTES, _LARGEST_HEADER = 1 << 10, 1 << 20
_DICTIONARY_PAGE = 2
_DICTIONARY_FIELD = 7
_DATA_FIELDS = {0: (5, 2), 3: (8, 4)}
"""By the kind of a page of data: the field of the header about its values, and the field of that with the encoding."""
_PLAIN, _BY_DICTIONARY, _DELTA_LENGTHS = 0, (2, 8), 6
_TEXTS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


def rows_at_once(file: StoredFile, content: Any, columns: list[str]) -> list[int]:
    """Return, for each row group of an open `ParquetFile`, how many records of these columns are decoded at a time.

    Guarantee: the texts of that many consecutive records, whichever they are, have at most `MOST_TEXT_BYTES`, or twice
    the largest pages of their columns. Pages and lists that are larger than the bounds are a `DataError`.
    """
    leaves = [number for number in range(len(content.schema)) if _is_of(content.schema.column(number).path, columns)]
    with file.open() as raw:
        return [_rows(file.name, raw, content, group, leaves) for group in range(content.metadata.num_row_groups)]


def _is_of(path: str, columns: list[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in columns)


def _rows(name: str, raw: Any, content: Any, group: int, leaves: list[int]) -> int:
    texts, large = [], 0
    for leaf in leaves:
        described, found = content.schema.column(leaf), _Column()
        for page in _pages(raw, content.metadata.row_group(group).column(leaf), name):
            found.take(page)
        is_text = described.physical_type in _TEXTS
        if described.max_repetition_level and (is_text or found.values > MOST_LISTED):
            raise DataError(f"{name}: lists are read of numbers, and of {MOST_LISTED:,} in a row group at most")
        large += sum(size for size in (found.dictionary, found.largest) if size > LARGE_PAGE_BYTES)
        if is_text:
            found.longest = max(found.longest, described.length)  # that of texts of one length, else 0
            texts.append(found)
    if large > MOST_PAGE_BYTES:
        raise DataError(
            f"{name}: its pages unpack to {large:,} bytes at once, more than {MOST_PAGE_BYTES:,}; "
            "write it with smaller pages or row groups"
        )
    rows, most = BLOCK_ROWS, max(MOST_TEXT_BYTES, 2 * sum(column.largest for column in texts))
    while rows > 1 and sum(column.most_bytes(rows) for column in texts) > most:
        rows //= 2
    return rows


@dataclass(frozen=True)
class _Page:
    """What the header of a page says, and of a dictionary the longest of its texts."""

    kind: int
    unpacked: int
    values: int = 0
    encoding: int = _PLAIN
    longest: int = 0


@dataclass
class _Column:
    """The pages of one column in one row group."""

    values: int = 0
    dictionary: int = 0
    """The bytes of its dictionary."""
    largest: int = 0
    """The bytes of its largest page of data."""
    longest: int = 0
    """The most bytes that a text can have of those that are not written out."""
    _written: list[tuple[int, int]] = field(default_factory=list)
    """Of each page of data: its values, and the bytes of those that are written out."""

    def take(self, page: _Page) -> None:
        """Take in the next page."""
        if page.kind == _DICTIONARY_PAGE:
            self.dictionary, self.longest = max(self.dictionary, page.unpacked), max(self.longest, page.longest)
            return
        self.largest, self.values = max(self.largest, page.unpacked), self.values + page.values
        written_out = page.encoding in (_PLAIN, _DELTA_LENGTHS)
        self._written.append((page.values, page.unpacked if written_out else 0))
        if not written_out and page.encoding not in _BY_DICTIONARY:
            self.longest = max(self.longest, page.unpacked)  # a text may repeat the one before, and add to it

    def most_bytes(self, rows: int) -> int:
        """Return the most bytes that this number of consecutive values can have.

        Pages of 3, 1, 2 values with 30, 90, 20 bytes: two values lie in two pages at most, 30 + 90 = 120 bytes.
        """
        if not self._written:
            return rows * self.longest
        values, sizes = np.array(self._written, np.int64).T
        ends, sums = np.cumsum(values), np.concatenate([[0], np.cumsum(sizes)])
        last = np.minimum(np.searchsorted(ends, ends + rows - 1), len(ends) - 1)
        return int((sums[last + 1] - sums[:-1]).max()) + rows * self.longest


def _pages(raw: Any, chunk: Any, name: str) -> Iterator[_Page]:
    """Yield the pages of a column chunk, up to where PyArrow reads them."""
    begins = [at for at in (chunk.dictionary_page_offset, chunk.data_page_offset) if at is not None and at > 0]
    at, seen = min(begins, default=0), 0
    end = at + chunk.total_compressed_size
    while seen < chunk.num_values and at < end:
        header, length = _header(raw, at, name)
        try:
            page, packed = _described(header), header[3]
            if min(packed, page.unpacked, page.values) < 0:
                raise ValueError("a size below 0")
            if page.kind == _DICTIONARY_PAGE and chunk.physical_type == "BYTE_ARRAY":
                if page.unpacked > MOST_DICTIONARY_BYTES:
                    raise DataError(f"{name}: a dictionary unpacks to more than {MOST_DICTIONARY_BYTES:,} bytes")
                raw.seek(at + length)
                page = replace(page, longest=_longest(raw.read(packed), header, chunk.compression))
        except (KeyError, TypeError, ValueError, OSError, struct.error) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{name}: cannot be read, it is damaged (a page of {chunk.path_in_schema})") from error
        yield page
        seen += page.values
        at += length + packed


def _described(header: dict[int, Any]) -> _Page:
    kind, unpacked = header[1], header[2]
    if kind not in _DATA_FIELDS:
        return _Page(kind, unpacked)
    about, encoding = _DATA_FIELDS[kind]
    return _Page(kind, unpacked, header[about][1], header[about][encoding])


def _longest(packed: bytes, header: dict[int, Any], compression: str) -> int:
    """Return the bytes of the longest text in a dictionary: its texts stand one after the other, each with its length.

    A `ValueError` if it has not as many as the header says.
    """
    unpacked, count, texts = header[2], header[_DICTIONARY_FIELD][1], packed
    if compression != "UNCOMPRESSED":
        codec = "lz4_raw" if compression == "LZ4" else compression.lower()
        try:
            texts = pa.decompress(packed, unpacked, codec=codec, asbytes=True)
        except OSError:  # an older form of LZ4, or damaged, which reading will say: one text may be all of it
            return int(unpacked)
    at = longest = found = 0
    end, read = len(texts), struct.Struct("<I").unpack_from
    while at < end:
        length = read(texts, at)[0]
        if length > longest:
            longest = length
        at += 4 + length
        found += 1
    if found != count:
        raise ValueError(f"{found} texts instead of {count}")
    return longest


def _header(raw: Any, at: int, name: str) -> tuple[dict[int, Any], int]:
    """Return the fields of the page header at a position, by number, and its length."""
    size = _HEADER_BYTES
    while size <= _LARGEST_HEADER:
        raw.seek(at)
        try:
            return _struct(raw.read(size), 0)
        except IndexError:  # statistics with long texts
            size *= 16
        except ValueError:
            break
    raise DataError(f"{name}: cannot be read, it is damaged (there is no page at byte {at:,})")


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the fields of a structure of Thrift's compact protocol that matter here, and where it ends.

    A field begins with a byte: how far its number is from the one before, and its type. An `IndexError` means that the
    data end too early.
    """
    found: dict[int, Any] = {}
    number = 0
    while data[at]:
        step, kind, at = data[at] >> 4, data[at] & 15, at + 1
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        if kind in (4, 5, 6):
            found[number], at = _integer(data, at)
        elif kind == 12 and depth < 2:
            found[number], at = _struct(data, at, depth + 1)
        elif kind == 8:
            length, at = _unsigned(data, at)
            at += length
        elif kind in (3, 7):
            at += 1 if kind == 3 else 8
        elif kind not in (1, 2):  # true and false have no bytes
            raise ValueError(f"no page header has a field of type {kind}")
    return found, at + 1


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _unsigned(data, at)
    return (number >> 1) ^ -(number & 1), at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 70:
        number |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return number, at
    raise ValueError("an integer without end")
