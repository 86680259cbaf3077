"""The pages of a Parquet file: how many of its records are decoded at once, so that memory stays bounded.

A few bytes of Parquet can stand for gigabytes: a page that compresses well, a dictionary with one long text and a run
of a million references to it, a text that shares its beginning with the one before. The sizes in the footer are what
the writer says; PyArrow takes memory for what the headers of the pages say, so these are read here, before it does.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tpsl.tables import ArrowObject, DataError
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

MOST_FOOTER_BYTES = 1 << 23
"""The description of another party's file, which is in memory before anything else of it; it grows with its columns."""

_HEADER_BYTES, _LARGEST_HEADER = 1 << 10, 1 << 20
_Fields = dict[tuple[int, ...], int]
"""The integers of a page header by their numbers in it: (5, 1) is the first field of the structure in the fifth."""
_KIND, _UNPACKED, _PACKED = (1,), (2,), (3,)
_DICTIONARY_PAGE, _DICTIONARY_VALUES = 2, (7, 1)
_DATA_PAGES = {0: ((5, 1), (5, 2)), 3: ((8, 1), (8, 4))}
"""By the kind of a page of data: the fields with the number of its values and with their encoding."""
_PLAIN, _BY_DICTIONARY, _DELTA_LENGTHS = 0, (2, 8), 6
_TEXTS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


def require_small_footer(file: StoredFile) -> None:
    """Refuse a Parquet file with a large description; the four bytes before the last four say how large it is."""
    with file.open() as content:
        content.seek(max(0, file.size - 8))
        size = int.from_bytes(content.read(4), "little")
    if size > MOST_FOOTER_BYTES:
        raise DataError(f"{file.name}: its description has {size:,} bytes, more than {MOST_FOOTER_BYTES:,}")


def rows_at_once(file: StoredFile, content: ArrowObject, columns: list[str]) -> list[int]:
    """Return, for each row group of an open `ParquetFile`, how many records of these columns are decoded at a time.

    Guarantee: the texts of that many consecutive records, whichever they are, have at most `MOST_TEXT_BYTES`, or twice
    the largest pages of their columns. Pages and lists that are larger than the bounds are a `DataError`.
    """
    leaves = [number for number in range(len(content.schema)) if _is_of(content.schema.column(number).path, columns)]
    with file.open() as raw:
        return [_rows(file.name, raw, content, group, leaves) for group in range(content.metadata.num_row_groups)]


def _is_of(path: str, columns: list[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in columns)


def _rows(name: str, raw: ArrowObject, content: ArrowObject, group: int, leaves: list[int]) -> int:
    texts, large = [], 0
    for leaf in leaves:
        described, found = (
            content.schema.column(leaf),
            _column(raw, content.metadata.row_group(group).column(leaf), name),
        )
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


@dataclass
class _Column:
    """The pages of one column in one row group, by what their headers say."""

    values: int = 0
    dictionary: int = 0
    """The bytes of its dictionary."""
    largest: int = 0
    """The bytes of its largest page of data."""
    longest: int = 0
    """The most bytes that a text can have of those that are not written out."""
    _written: list[tuple[int, int]] = field(default_factory=list)
    """Of each page of data: its values, and the bytes of those that are written out."""

    def add(self, unpacked: int, values: int, encoding: int) -> None:
        """Take in the next page of data."""
        self.largest, self.values = max(self.largest, unpacked), self.values + values
        written_out = encoding in (_PLAIN, _DELTA_LENGTHS)
        self._written.append((values, unpacked if written_out else 0))
        if not written_out and encoding not in _BY_DICTIONARY:
            self.longest = max(self.longest, unpacked)  # a text may repeat the one before, and add to it

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


def _column(raw: ArrowObject, chunk: ArrowObject, name: str) -> _Column:
    """Return what the pages of a column chunk are, up to where PyArrow reads them."""
    begins = [at for at in (chunk.dictionary_page_offset, chunk.data_page_offset) if at is not None and at > 0]
    at, found = min(begins, default=0), _Column()
    end = at + chunk.total_compressed_size
    while found.values < chunk.num_values and at < end:
        try:
            header, length = _header(raw, at)
            kind, unpacked, packed = header[_KIND], header[_UNPACKED], header[_PACKED]
            values, encoding = (header[which] for which in _DATA_PAGES[kind]) if kind in _DATA_PAGES else (0, _PLAIN)
            if min(packed, unpacked, values) < 0:
                raise ValueError("a size below 0")
            if kind != _DICTIONARY_PAGE:
                found.add(unpacked, values, encoding)
            else:
                found.dictionary = max(found.dictionary, unpacked)
                if chunk.physical_type == "BYTE_ARRAY":
                    raw.seek(at + length)
                    found.longest = max(found.longest, _longest(raw, header, chunk.compression, name))
        except (KeyError, ValueError, OSError, struct.error) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{name}: cannot be read, it is damaged (a page of {chunk.path_in_schema})") from error
        at += length + packed
    return found


def _longest(raw: ArrowObject, header: _Fields, compression: str, name: str) -> int:
    """Return the bytes of the longest text in a dictionary: its texts stand one after the other, each with its length.

    A `ValueError` if it has not as many as the header says.
    """
    unpacked = header[_UNPACKED]
    if unpacked > MOST_DICTIONARY_BYTES:
        raise DataError(f"{name}: a dictionary unpacks to more than {MOST_DICTIONARY_BYTES:,} bytes")
    texts = raw.read(header[_PACKED])
    if compression != "UNCOMPRESSED":
        codec = "lz4_raw" if compression == "LZ4" else compression.lower()
        try:
            texts = pa.decompress(texts, unpacked, codec=codec, asbytes=True)
        except OSError:  # an older form of LZ4, or damaged, which reading will say: one text may be all of it
            return unpacked
    at = longest = found = 0
    end, read = len(texts), struct.Struct("<I").unpack_from
    while at < end:
        length = read(texts, at)[0]
        if length > longest:
            longest = length
        at += 4 + length
        found += 1
    if found != header[_DICTIONARY_VALUES]:
        raise ValueError(f"{found} texts instead of {header[_DICTIONARY_VALUES]}")
    return longest


def _header(raw: ArrowObject, at: int) -> tuple[_Fields, int]:
    """Return the fields of the page header at a position, and its length; a `ValueError` if there is none."""
    for size in (_HEADER_BYTES, _LARGEST_HEADER):  # statistics may have long texts
        raw.seek(at)
        found: _Fields = {}
        with suppress(IndexError):
            return found, _read_structure(raw.read(size), 0, found)
    raise ValueError(f"no page header at byte {at}")


def _read_structure(data: bytes, at: int, found: _Fields, within: tuple[int, ...] = ()) -> int:
    """Note the integers in a structure of Thrift's compact protocol; return where it ends.

    A field begins with a byte: how far its number is from the one before, and its type. An `IndexError` means that the
    data end too early.
    """
    number = 0
    while data[at]:
        step, kind, at = data[at] >> 4, data[at] & 15, at + 1
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        if kind in (4, 5, 6):
            found[*within, number], at = _integer(data, at)
        elif kind == 12 and len(within) < 2:
            at = _read_structure(data, at, found, (*within, number))
        elif kind == 8:
            length, at = _unsigned(data, at)
            at += length
        elif kind in (3, 7):
            at += 1 if kind == 3 else 8
        elif kind not in (1, 2):  # true and false have no bytes
            raise ValueError(f"no page header has a field of type {kind}")
    return at + 1


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
