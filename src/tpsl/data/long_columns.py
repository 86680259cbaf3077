"""Columns with a value for each record: in memory, or in files of the cache once they are large.

Such a file has no name, so it goes with the column or its process. What lies there does not count as memory that a
process needs: the system writes it out when others need the space.
"""

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data import arrays
from tpsl.data.errors import DataError
from tpsl.files import make_private_folder, naming_what_does_not_fit

Column = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

_ROWS_AT_ONCE = 1 << 20
_TEXTS_AT_ONCE = 1 << 17
COLUMNS = 16
"""Columns that a party has at a time."""


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Column:
    """Return a column, or several of one type, to be filled."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not _is_large(size):
        return np.empty(shape, dtype)
    with _nameless() as file, naming_what_does_not_fit(arrays.cache_folder(), size):
        os.posix_fallocate(file.fileno(), 0, size)  # else a full disk would be noticed as a bus error
        return np.ndarray(shape, dtype, mmap.mmap(file.fileno(), size))


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
    _release(found, values, rows)
    return found


def counting(rows: int) -> Rows:
    """Return the numbers from 0 to `rows` - 1."""
    found = empty(rows, np.int64)
    for part in parts(rows):
        found[part] = np.arange(part.start, part.stop)
    _release(found)
    return found


def mask_of(rows: int, chosen: Rows) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is among the chosen ones."""
    mask = empty(rows, np.bool_)
    mask[:] = False
    for part in parts(len(chosen)):
        mask[chosen[part]] = True
    return mask


def ascending(rows: Rows) -> Rows:
    """Return the rows in ascending order."""
    found = empty(len(rows), np.int64)
    found[:] = rows
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
    _release(found)
    return found


def _release(*columns: Column) -> None:
    """Take columns in files out of this process's memory until they are needed again."""
    for column in columns:
        arrays.release_pages(column)


class TextStack:
    """Texts, none of them missing, that come piece by piece and become one Arrow array.

    It is of `pa.string`, or of `pa.large_string` if they are more than one array of that type can hold.
    """

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        self._waiting_bytes = self._texts_bytes = self._count = 0
        self._files: tuple[IO[bytes], IO[bytes]] | None = None

    def add(self, texts: Any) -> None:
        """Add the next texts."""
        self._waiting.append(texts)
        self._waiting_bytes += _bytes_of(texts)
        if self._files is not None or _is_large(self._waiting_bytes):
            self._write()

    def finish(self) -> Any:
        """Return all texts."""
        if self._files is None:
            return pa.concat_arrays(self._waiting) if self._waiting else pa.array([], pa.string())
        texts, offsets = self._files
        offsets.write(np.int64(self._texts_bytes).tobytes())
        wide, content = (_mapped(file) for file in (offsets, texts))
        if self._texts_bytes > np.iinfo(np.int32).max:
            return pa.Array.from_buffers(pa.large_string(), self._count, [None, wide, content])
        narrow, begins = empty(self._count + 1, np.int32), np.frombuffer(wide, np.int64)
        for part in parts(self._count + 1):
            narrow[part] = begins[part]
        _release(narrow)
        return pa.Array.from_buffers(pa.string(), self._count, [None, pa.py_buffer(narrow), content])

    def _write(self) -> None:
        self._files = self._files or (_nameless(), _nameless())
        texts, offsets = self._files
        with naming_what_does_not_fit(arrays.cache_folder(), self._waiting_bytes):
            for piece in self._waiting:
                ends, content = _parts_of(piece)
                offsets.write((ends[:-1] - ends[0] + self._texts_bytes).tobytes())
                texts.write(content[ends[0] : ends[-1]])
                self._texts_bytes += int(ends[-1] - ends[0])
                self._count += len(piece)
        self._waiting, self._waiting_bytes = [], 0


def taken_texts(values: Any, rows: Rows) -> Any:
    """Return the texts at these rows, in this order."""
    found = TextStack()
    for part in parts(len(rows), _TEXTS_AT_ONCE):
        found.add(values.take(pa.array(rows[part])).cast(pa.string()))
    return found.finish()


def _is_large(size: int) -> bool:
    """Whether a column of this size goes into a file."""
    return COLUMNS * size > arrays.LARGE_BYTES


def _bytes_of(texts: Any) -> int:
    """Return what texts take: the same however they are cut into pieces."""
    ends, _ = _parts_of(texts)
    return int(ends[-1] - ends[0]) + 8 * len(texts)


def _parts_of(texts: Any) -> tuple[npt.NDArray[np.int64], memoryview]:
    """Return where each text begins, and the last one ends, and the bytes of all."""
    wide = texts.cast(pa.large_string())
    _, offsets, content = wide.buffers()
    ends = np.frombuffer(offsets, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    return ends, memoryview(content or b"")


def _nameless() -> IO[bytes]:
    """Open a new file in the cache, for its owner only, that has no name."""
    folder = arrays.cache_folder()
    try:
        make_private_folder(folder)
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error}); TPSL_CACHE names another folder") from error


def _mapped(file: IO[bytes]) -> Any:
    file.flush()
    size = file.seek(0, os.SEEK_END)
    with file:
        return pa.py_buffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
