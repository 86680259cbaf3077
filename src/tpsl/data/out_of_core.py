"""Columns and arrays that may be too large for memory: columns on disk, and row arithmetic.

What is small stays in memory. What is large goes to spill files, anonymous temporary files in the cache (`TPSL_CACHE`),
which the operating system deletes when the process ends. Pages of a mapped file do not count as memory that a process
needs.
"""

import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.files import DiskFull, make_private_folder
from tpsl.spill import Array, ArrowArray, Column, SortedRows, SpillFile, cache_folder, offsets_and_bytes
from tpsl.tables import DataError

LARGE_BYTES = 1 << 28
"""What takes more than this is kept on disk."""
COLUMNS = 16
"""Columns that a party has at a time: each is large from a sixteenth of that on."""

_ROWS_AT_ONCE = 1 << 20
_TRANSPOSED_AT_ONCE = 1 << 16
_TEXTS_AT_ONCE = 1 << 17

Rows = npt.NDArray[np.int64]


# ---- columns and rows on disk


@contextmanager
def _writing_to_cache() -> Iterator[Path]:
    """Give the folder of the cache; if it cannot be written, the error says how to name another one."""
    folder = cache_folder()
    try:
        make_private_folder(folder)
        yield folder
    except DiskFull:
        raise
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error}); TPSL_CACHE names another folder") from error


def spill_file(parts: int = 1) -> SpillFile:
    """Return a spill file in the cache."""
    with _writing_to_cache() as folder:
        return SpillFile(folder, parts)


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Column:
    """Return a column, or several of one type, to be filled."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, spill_file().allocated(size)) if _is_large(size) else np.empty(shape, dtype)


def _is_large(size: int) -> bool:
    """Whether a column of this size goes into a file."""
    return COLUMNS * size > LARGE_BYTES


class ColumnStack:
    """Columns of one type and length that become an array [rows, columns], in memory or, if they are large, on disk."""

    def __init__(self, dtype: npt.DTypeLike, rows: int, large: bool = False) -> None:
        self._dtype, self._rows, self._count = np.dtype(dtype), rows, 0
        self._columns: list[Array] = []
        self._spill = spill_file() if large else None

    def add(self, pieces: Iterable[Array]) -> None:
        """Add the next column, which comes in pieces."""
        self._count += 1
        contiguous = (np.ascontiguousarray(piece, dtype=self._dtype) for piece in pieces)
        if self._spill is None:
            self._columns.append(np.concatenate([np.empty(0, self._dtype), *contiguous]))
        else:
            for piece in contiguous:
                self._spill.write(piece.data)

    def finish(self) -> Array:
        """Return the array; one on disk is memory-mapped."""
        if self._spill is None:
            return np.stack(self._columns, axis=1) if self._count else np.empty((self._rows, 0), dtype=self._dtype)
        by_column = np.frombuffer(self._spill.mapped(), self._dtype).reshape(self._count, self._rows)
        found = empty((self._rows, self._count), self._dtype)
        for part in parts(self._rows, _TRANSPOSED_AT_ONCE):
            found[part] = by_column[:, part].T
            release_pages(by_column, found)
        return found


class RowStack:
    """Rows of one type and width that become an array [rows, width]: in memory, or memory-mapped once they are large.

    One of `many` that a party has at a time is large sooner. Rows are copied into one block: kept as they come, small
    pieces would lie between what is computed for each of them, and hold that memory, too.
    """

    def __init__(self, dtype: npt.DTypeLike, width: int, many: int = 1) -> None:
        self._block, self._rows, self._many = np.empty((0, width), dtype), 0, many
        self._spill: SpillFile | None = None

    def add(self, rows: Array) -> None:
        """Add the next rows."""
        start, self._rows = self._rows, self._rows + len(rows)
        if self._rows > len(self._block):
            self._resize(max(self._rows, 2 * len(self._block)))
        self._block[start : self._rows] = np.asarray(rows).reshape(len(rows), self._block.shape[1])
        size = self._block[: self._rows].nbytes
        if self._rows and (self._spill is not None or self._many * size > LARGE_BYTES):
            self._spill = self._spill or spill_file()
            self._spill.write(self._block[: self._rows].data)
            self._rows = 0

    def finish(self) -> Array:
        """Return the array."""
        if self._spill is None:
            self._resize(self._rows)
            return self._block
        return np.frombuffer(self._spill.mapped(mmap.ACCESS_COPY), self._block.dtype).reshape(-1, self._block.shape[1])

    def _resize(self, rows: int) -> None:
        self._block.resize((rows, self._block.shape[1]), refcheck=False)


class TextStack:
    """Texts, none of them missing, that come piece by piece and become one Arrow array.

    It is of `pa.string`, or of `pa.large_string` if they are more than one array of that type can hold.
    """

    def __init__(self) -> None:
        self._waiting: list[ArrowArray] = []
        self._waiting_bytes = self._texts_bytes = self._count = 0
        self._spills: tuple[SpillFile, SpillFile] | None = None

    def add(self, texts: ArrowArray) -> None:
        """Add the next texts."""
        ends, _ = offsets_and_bytes(texts.cast(pa.large_string()))
        self._waiting.append(texts)
        self._waiting_bytes += int(ends[-1] - ends[0]) + 8 * len(texts)  # the same however they are cut into pieces
        if self._spills is not None or _is_large(self._waiting_bytes):
            self._write()

    def finish(self) -> ArrowArray:
        """Return all texts."""
        if self._spills is None:
            return pa.concat_arrays(self._waiting) if self._waiting else pa.array([], pa.string())
        texts, offsets = self._spills
        offsets.write(np.int64(self._texts_bytes).tobytes())
        wide, content = (pa.py_buffer(spill.mapped()) for spill in (offsets, texts))
        if self._texts_bytes > np.iinfo(np.int32).max:
            return pa.Array.from_buffers(pa.large_string(), self._count, [None, wide, content])
        narrow, begins = empty(self._count + 1, np.int32), np.frombuffer(wide, np.int64)
        for part in parts(self._count + 1):
            narrow[part] = begins[part]
        release_pages(narrow)
        return pa.Array.from_buffers(pa.string(), self._count, [None, pa.py_buffer(narrow), content])

    def _write(self) -> None:
        self._spills = self._spills or (spill_file(), spill_file())
        texts, offsets = self._spills
        for piece in self._waiting:
            ends, content = offsets_and_bytes(piece.cast(pa.large_string()))
            offsets.write((ends[:-1] - ends[0] + self._texts_bytes).tobytes())
            texts.write(content[ends[0] : ends[-1]])
            self._texts_bytes += int(ends[-1] - ends[0])
            self._count += len(piece)
        self._waiting, self._waiting_bytes = [], 0


# ---- memory maps


def is_mapped(array: Array) -> bool:
    """Return whether an array is memory-mapped."""
    return _map_of(array) is not None


def release_pages(*arrays: Array) -> None:
    """Take what was read of memory-mapped arrays out of this process's memory; it is read again when needed."""
    for array in arrays:
        held = _map_of(array)
        if held is not None and hasattr(mmap, "MADV_DONTNEED"):
            held.madvise(mmap.MADV_DONTNEED)


def _map_of(array: Array) -> mmap.mmap | None:
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None


# ---- columns of rows


def parts(rows: int, at_once: int | None = None) -> Iterator[slice]:
    """Yield all rows in parts of bounded size."""
    size = at_once or _ROWS_AT_ONCE
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def taken(values: Column, rows: Rows) -> Column:
    """Return the values of these rows, in this order."""
    found = empty(len(rows), values.dtype)
    for part in parts(len(rows)):
        found[part] = values[rows[part]]
    release_pages(found, values, rows)
    return found


def taken_texts(values: ArrowArray, rows: Rows) -> ArrowArray:
    """Return the texts at these rows, in this order."""
    found = TextStack()
    for part in parts(len(rows), _TEXTS_AT_ONCE):
        found.add(values.take(pa.array(rows[part])).cast(pa.string()))
    return found.finish()


def counting(rows: int) -> Rows:
    """Return the numbers from 0 to `rows` - 1."""
    return _filled(rows, (np.arange(part.start, part.stop) for part in parts(rows)))


def mask_of(rows: int, chosen: Rows) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is among the chosen ones."""
    mask = empty(rows, np.bool_)
    mask[:] = False
    for part in parts(len(chosen)):
        mask[chosen[part]] = True
    return mask


def ascending(rows: Rows) -> Rows:
    """Return the rows in ascending order."""
    found = _filled(len(rows), [rows])
    found.sort()
    return found


def others(rows: int, left_out: Rows) -> Rows:
    """Return the rows that are not among those left out, ascending."""
    left = mask_of(rows, left_out)
    return _filled(rows - len(left_out), (np.flatnonzero(~left[part]) + part.start for part in parts(rows)))


def chosen(rows: Rows, mask: npt.NDArray[np.bool_], *, inverted: bool = False) -> Rows:
    """Return those of the rows that a mask over all rows chooses, or does not, in their order."""
    count = sum(int(np.count_nonzero(mask[rows[part]] != inverted)) for part in parts(len(rows)))
    return _filled(count, (rows[part][mask[rows[part]] != inverted] for part in parts(len(rows))))


def joined(first: Rows, second: Rows) -> Rows:
    """Return rows and then others."""
    if not len(first) or not len(second):
        return first if len(first) else second
    return _filled(len(first) + len(second), (first, second))


def _filled(count: int, pieces: Iterable[Rows]) -> Rows:
    """Return pieces that have this many rows in all, one after the other."""
    found, done = empty(count, np.int64), 0
    for piece in pieces:
        found[done : done + len(piece)] = piece
        done += len(piece)
    release_pages(found)
    return found


# ---- the order of values


def is_ascending(values: ArrowArray, *, strictly: bool = False) -> bool:
    """Say whether each value of an Arrow column is at least the one before it, or `strictly` more."""
    in_order = pc.less if strictly else pc.less_equal
    return all(
        pc.all(in_order(values[part], values[part.start + 1 : part.stop + 1])).as_py() is not False
        for part in parts(len(values) - 1)
    )


def sorted_positions(values: ArrowArray) -> Rows:
    """Return the positions of an Arrow column's values in ascending order, equal ones in the order that they have.

    Texts are ordered by their UTF-8 bytes. The positions may lie on disk; memory is that of a few parts of the column.
    """
    found, done = empty(len(values), np.int64), 0

    def blocks() -> Iterator[tuple[Column, Rows]]:
        for part in parts(len(values)):
            yield _key(values[part]), np.arange(part.start, part.stop)

    with _writing_to_cache() as folder, SortedRows(folder, blocks) as ordered:
        for _, positions in ordered.parts():
            found[done : done + len(positions)] = positions
            done += len(positions)
    release_pages(found)
    return found


def _key(values: ArrowArray) -> Column:
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return values.cast(pa.large_string()).view(pa.large_binary())
    return values.to_numpy(zero_copy_only=False)
