"""What does not fit into memory: the spill file, rows in numbered parts, and the external sort.

A spill file is an anonymous temporary file: it has no name, only its owner can read it, and the operating system
deletes it when it is closed or the process ends. A few rows stay in memory; no file is made for them.
"""

from __future__ import annotations

import mmap
import os
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.files import make_private_folder, naming_what_does_not_fit

ArrowArray: TypeAlias = Any
"""An Arrow array, table or scalar: PyArrow comes without types."""
Array: TypeAlias = npt.NDArray[Any]
"""A NumPy array of a type that only the caller knows."""
Column: TypeAlias = Array | ArrowArray
"""A value for each row: a NumPy array [rows, …], or texts below 4 GiB each as an Arrow array of `large_binary`."""
Columns: TypeAlias = tuple[Column, ...]

ROWS_AT_ONCE = 1 << 19
"""Rows that are in memory together."""

_SAMPLE = 256
"""Sampled keys for each part that is sorted: parts are of about one size."""
_MOST_CUTS = 511
_HIGH_BITS = 8


def cache_folder() -> Path:
    """Return the folder for encoded tables and spill files: `TPSL_CACHE`."""
    named = os.environ.get("TPSL_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpsl"


class SpillFile(AbstractContextManager["SpillFile"]):
    """Bytes in numbered parts, each of which is written piece by piece, then read; or one run of bytes to be mapped.

    It is deleted with this object at the latest. The folder is made if it is missing. A full disk is a `DiskFull` that
    names the folder and what did not fit.
    """

    def __init__(self, folder: Path, parts: int = 1) -> None:
        self._folder, self._end = folder, 0
        make_private_folder(folder)
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - it is open as long as the object lives
        weakref.finalize(self, self._file.close)
        self._pieces = [array("Q") for _ in range(parts)]
        """Where the pieces of each part begin and end."""

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the file; what was mapped stays."""
        self._file.close()

    def write(self, piece: bytes | memoryview, part: int = 0) -> None:
        """Append a piece, which may be empty, to a part; nothing has been read yet."""
        size = memoryview(piece).nbytes
        with naming_what_does_not_fit(self._folder):
            self._file.write(piece)
        self._pieces[part].extend((self._end, self._end + size))
        self._end += size

    def pieces(self, part: int) -> Iterator[bytes]:
        """Yield the pieces of a part as they were written."""
        bounds = iter(self._pieces[part])
        for start, end in zip(bounds, bounds, strict=True):
            with naming_what_does_not_fit(self._folder):  # the last bytes are written only now
                self._file.seek(start)
            yield self._file.read(end - start)

    def read(self, part: int) -> bytes:
        """Return all that was written to a part."""
        return b"".join(self.pieces(part))

    def allocated(self, size: int) -> mmap.mmap:
        """Return this many bytes to be filled; on a full disk they would fail later, as a bus error."""
        with self._file as file, naming_what_does_not_fit(self._folder):
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)

    def mapped(self, access: int = mmap.ACCESS_READ) -> mmap.mmap | bytes:
        """Return what was written; with `ACCESS_COPY` it can be changed, in memory. No more can be written."""
        with naming_what_does_not_fit(self._folder):
            self._file.flush()
        with self._file as file:
            return mmap.mmap(file.fileno(), self._end, access=access) if self._end else b""


class RowParts(AbstractContextManager["RowParts"]):
    """Rows of some columns that come in any order, each for a numbered part, and are read part by part.

    Memory is that of `at_once` rows and of a part. As many rows as that stay in memory, and come back as one part.
    """

    def __init__(self, folder: Path, parts: int, at_once: int | None = None) -> None:
        self._folder, self._parts, self._at_once = folder, parts, at_once or ROWS_AT_ONCE
        self._waiting: list[tuple[npt.NDArray[np.uint16], Columns]] = []
        self._waiting_rows = self.count = 0
        self._file: SpillFile | None = None
        self._none: Columns = ()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the file."""
        if self._file is not None:
            self._file.close()

    def write(self, part_of: npt.NDArray[np.integer], *columns: Column) -> None:
        """Add rows, whose parts have these numbers, below 65,536; the columns are of the same types each time."""
        self._waiting.append((part_of.astype(np.uint16), columns))
        self._waiting_rows += len(part_of)
        self.count += len(part_of)
        if self._waiting_rows >= self._at_once and self._parts > 1:
            self._spill()

    def parts(self) -> Iterator[Columns]:
        """Yield the columns of each part, rows in the order in which they came; nothing if there are no rows."""
        if self._file is None:
            if self._waiting:
                yield tuple(_joined(pieces) for pieces in zip(*(columns for _, columns in self._waiting), strict=True))
            return
        yield from (self.read(part) for part in range(self._parts))

    def read(self, part: int) -> Columns:
        """Return the columns of a part, where the rows were too many for memory."""
        file = self._spill()
        return self._columns(file.read(stream) for stream in self._streams(part))

    def pieces(self, part: int) -> Iterator[Columns]:
        """Yield the columns of a part, some rows at a time: for a part that may be larger than memory."""
        file = self._spill()
        together = zip(*(file.pieces(stream) for stream in self._streams(part)), strict=True)
        return (self._columns(buffers) for buffers in together)

    def _spill(self) -> SpillFile:
        """Write the rows that wait to the file, those of a part together."""
        if self._waiting:
            part_of = np.concatenate([numbers for numbers, _ in self._waiting])
            columns = [_joined(pieces) for pieces in zip(*(columns for _, columns in self._waiting), strict=True)]
            order = np.argsort(part_of, kind="stable")
            columns = [_taken(column, order) for column in columns]
            self._none = tuple(column[:0] for column in columns)
            self._waiting, self._waiting_rows = [], 0
            self._file = self._file or SpillFile(self._folder, self._parts * len(self._streams(0)))
            ends = np.cumsum(np.bincount(part_of, minlength=self._parts)).tolist()
            for part, (start, end) in enumerate(pairwise([0, *ends])):
                if start < end:
                    buffers = chain.from_iterable(_buffers(column[start:end]) for column in columns)
                    for stream, buffer in zip(self._streams(part), buffers, strict=True):
                        self._file.write(buffer, stream)
        assert self._file is not None
        return self._file

    def _streams(self, part: int) -> range:
        """Return the parts of the file in which the columns of a part lie: one for numbers, two for texts."""
        count = sum(1 if isinstance(column, np.ndarray) else 2 for column in self._none)
        return range(part * count, (part + 1) * count)

    def _columns(self, buffers: Iterable[bytes]) -> Columns:
        remaining = iter(buffers)
        return tuple(_column(remaining, like) for like in self._none)


def by_high_bits(keys: npt.NDArray[np.uint64], bits: int = 64) -> npt.NDArray[np.uint64]:
    """Return the part of each key among 256 of one size, whose ranges follow each other; keys have so many bits."""
    return keys >> np.uint64(max(0, bits - _HIGH_BITS))


class SortedRows(AbstractContextManager["SortedRows"]):
    """Rows in ascending order of their first column, the key: numbers without NaN, or texts by their bytes.

    Rows with equal keys keep their order. `blocks` gives all rows, in blocks that fit into memory, and is called
    twice, both times before this object is there: for a sample of the keys, which chooses the keys between which parts
    are cut, and for the rows. Time is that of sorting `at_once` rows at a time, memory that of a few times as many.
    """

    def __init__(self, folder: Path, blocks: Callable[[], Iterable[Columns]], at_once: int | None = None) -> None:
        at_once = at_once or ROWS_AT_ONCE
        self._cuts = _cuts((block[0] for block in blocks()), at_once)
        self._rows = RowParts(folder, 2 * len(self._cuts) + 1, at_once)
        try:
            for block in blocks():
                # Sorted texts are cut faster, and what consists of sorted pieces is sorted faster.
                block = _in_order(block) if len(self._cuts) and not isinstance(block[0], np.ndarray) else block
                self._rows.write(_part_of(block[0], self._cuts), *block)
        except BaseException:
            self._rows.close()
            raise

    def __exit__(self, *error: object) -> None:
        self._rows.close()

    def parts(self) -> Iterator[Columns]:
        """Yield the columns, some rows at a time; each goes on where the last one ended."""
        if not len(self._cuts):
            yield from map(_in_order, self._rows.parts())
            return
        for part in range(2 * len(self._cuts) + 1):
            if part % 2:  # of one key only, however many rows have it
                yield from self._rows.pieces(part)
            elif len((rows := self._rows.read(part))[0]):
                yield _in_order(rows)


def _cuts(keys: Iterable[Column], at_once: int) -> Column:
    """Return different keys, ascending, between which about `at_once` rows lie; none if all rows are no more."""
    apart, count, sample = max(1, at_once // _SAMPLE), 0, []
    for block in keys:
        sample.append(_taken(block, np.arange(-count % apart, len(block), apart)))  # every so many rows of all
        count += len(block)
    parts = min(_MOST_CUTS + 1, -(-count // at_once))
    if parts <= 1:
        return ()
    (ordered,) = _in_order((_joined(sample),))
    cuts = _taken(ordered, np.arange(1, parts) * len(ordered) // parts)
    return np.unique(cuts) if isinstance(cuts, np.ndarray) else sorted(set(cuts.to_pylist()))


def _part_of(keys: Column, cuts: Column) -> npt.NDArray[np.integer]:
    """Return the part of each key: with the cuts 3 and 7 it is 0 below 3, 1 for 3, 2 between, 3 for 7, 4 above.

    Texts are in order.
    """
    if not len(cuts):
        return np.zeros(len(keys), np.uint16)
    if isinstance(keys, np.ndarray):
        below = np.searchsorted(cuts, keys)
        is_cut: npt.NDArray[np.bool_] = cuts[np.minimum(below, len(cuts) - 1)] == keys
        return 2 * below + is_cut
    ends = [side(keys, cut, key=_plain) for cut in cuts for side in (bisect_left, bisect_right)]
    return np.repeat(np.arange(len(ends) + 1), np.diff([0, *ends, len(keys)]))


def sorted_rows(keys: Column) -> npt.NDArray[np.int64]:
    """Return the rows of fewer than 2^31 keys in ascending order; equal ones keep theirs."""
    order: npt.NDArray[np.int64]
    if not isinstance(keys, np.ndarray):
        order = pc.array_sort_indices(keys).to_numpy().view(np.int64)
        return order
    order = np.argsort(keys)  # with a second sort for equal keys it is still faster than a stable one
    ranked = keys[order]
    differ = ranked[1:] != ranked[:-1]
    if not differ.all():
        run = np.concatenate([[0], np.cumsum(differ)])
        order = np.sort(run << 32 | order) & 0xFFFFFFFF
    return order


def _in_order(columns: Columns) -> Columns:
    order = sorted_rows(columns[0])
    return tuple(_taken(column, order) for column in columns)


def _plain(value: ArrowArray) -> bytes:
    plain: bytes = value.as_py()
    return plain


def _taken(column: Column, rows: npt.NDArray[np.int64]) -> Column:
    return column[rows] if isinstance(column, np.ndarray) else column.take(pa.array(rows))


def _joined(pieces: Iterable[Column]) -> Column:
    first, *others = pieces
    if not others:
        return first
    return (np.concatenate if isinstance(first, np.ndarray) else pa.concat_arrays)([first, *others])


def _buffers(column: Column) -> list[bytes | memoryview]:
    """Return the bytes of a column that has a row: of texts their lengths, and all their bytes."""
    if isinstance(column, np.ndarray):
        return [column.tobytes()]
    ends, content = offsets_and_bytes(column)
    return [np.diff(ends).astype(np.uint32).tobytes(), content[ends[0] : ends[-1]]]


def offsets_and_bytes(texts: ArrowArray) -> tuple[npt.NDArray[np.int64], memoryview]:
    """Return where each text of a large array begins, and the last one ends, and all bytes: of [ab, c] 0, 2, 3, abc."""
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return ends, memoryview(content or b"")


def _column(buffers: Iterator[bytes], like: Column) -> Column:
    """Return the column that the next buffers hold, of the same type as another one."""
    if isinstance(like, np.ndarray):
        return np.frombuffer(next(buffers), like.dtype).reshape(-1, *like.shape[1:])
    lengths, content = np.frombuffer(next(buffers), np.uint32), next(buffers)
    offsets = pa.py_buffer(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), [None, offsets, pa.py_buffer(content)])
