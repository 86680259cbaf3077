"""Arrays too large for memory: made column by column or row by row, kept on disk row by row, read as memory maps."""

import fcntl
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.data.errors import DataError
from tpsl.files import make_private_folder, naming_what_does_not_fit, open_private, sync_folder

LARGE_BYTES = 1 << 28
"""What takes more than this is kept on disk."""

_ROWS_AT_ONCE = 1 << 16
_UNFINISHED = ".unfinished"

Array = npt.NDArray[Any]


class ColumnStack:
    """Columns of one type and length that become an array [rows, columns], in memory or on disk as a `.npy` file."""

    def __init__(self, dtype: npt.DTypeLike, rows: int, path: Path | None = None) -> None:
        self._dtype, self._rows, self._path, self._count = np.dtype(dtype), rows, path, 0
        self._columns: list[Array] = []
        self._file = None if path is None else open_private(path.with_suffix(".columns"), "xb")

    def add(self, pieces: Iterable[Array]) -> None:
        """Add the next column, which comes in pieces."""
        self._count += 1
        contiguous = (np.ascontiguousarray(piece, dtype=self._dtype) for piece in pieces)
        if self._file is None:
            self._columns.append(np.concatenate([np.empty(0, self._dtype), *contiguous]))
        else:
            for piece in contiguous:
                self._file.write(piece.data)

    def finish(self) -> Array:
        """Return the array; one on disk is memory-mapped, and its content is durable."""
        if self._file is None or self._path is None:
            return np.stack(self._columns, axis=1) if self._count else np.empty((self._rows, 0), dtype=self._dtype)
        self._file.close()
        columns = Path(self._file.name)
        with open_private(self._path, "xb") as file:
            described = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False}
            np.lib.format.write_array_header_1_0(file, {**described, "shape": (self._rows, self._count)})
            if self._count and self._rows:
                by_column = np.memmap(columns, self._dtype, "r", shape=(self._count, self._rows))
                for start in range(0, self._rows, _ROWS_AT_ONCE):
                    file.write(np.ascontiguousarray(by_column[:, start : start + _ROWS_AT_ONCE].T).data)
                    release_pages(by_column)
            file.flush()
            os.fsync(file.fileno())
        columns.unlink()
        return mapped(self._path)


class RowStack:
    """Rows of one type and width that become an array [rows, width]: in memory, or memory-mapped once they are large.

    What lies on disk has no name any more when it is mapped, so it goes with the array. One of `many` that a party has
    at a time is large sooner. Rows are copied into one block: kept as they come, small pieces would lie between what is
    computed for each of them, and hold that memory, too.
    """

    def __init__(self, dtype: npt.DTypeLike, width: int, many: int = 1) -> None:
        self._block, self._rows, self._many = np.empty((0, width), dtype), 0, many
        self._draft: Draft | None = None

    def add(self, rows: Array) -> None:
        """Add the next rows."""
        start, self._rows = self._rows, self._rows + len(rows)
        if self._rows > len(self._block):
            self._resize(max(self._rows, 2 * len(self._block)))
        self._block[start : self._rows] = np.asarray(rows).reshape(len(rows), self._block.shape[1])
        size = self._block[: self._rows].nbytes
        if self._rows and (self._draft is not None or self._many * size > LARGE_BYTES):
            self._draft = self._draft or Draft()
            self._write(self._draft.path / "rows")

    def finish(self) -> Array:
        """Return the array."""
        if self._draft is None:
            self._resize(self._rows)
            return self._block
        found = np.memmap(self._draft.path / "rows", self._block.dtype, "c").reshape(-1, self._block.shape[1])
        self._draft.remove()
        return np.asarray(found)

    def _resize(self, rows: int) -> None:
        self._block.resize((rows, self._block.shape[1]), refcheck=False)

    def _write(self, path: Path) -> None:
        with naming_what_does_not_fit(path), open_private(path, "ab") as file:
            file.write(self._block[: self._rows].data)
        self._rows = 0


def mapped(path: Path) -> Array:
    """Return the array in a `.npy` file without reading it; it is read-only."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def is_mapped(array: Array) -> bool:
    """Return whether an array is memory-mapped."""
    return _map_of(array) is not None


def release_pages(array: Array) -> None:
    """Take what was read of a memory-mapped array out of this process's memory; it is read again when needed."""
    held = _map_of(array)
    if held is not None and hasattr(mmap, "MADV_DONTNEED"):
        held.madvise(mmap.MADV_DONTNEED)


def _map_of(array: Array) -> mmap.mmap | None:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def cache_folder() -> Path:
    """Return the folder where encoded tables that are too large for memory are kept: `TPSL_CACHE`."""
    named = os.environ.get("TPSL_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpsl"


class Draft:
    """A folder in the cache for what is being made, which goes with this object or its process.

    One whose process was killed is removed when the next is made.
    """

    def __init__(self) -> None:
        folder = cache_folder()
        try:
            make_private_folder(folder)
            for draft in folder.glob(f".*{_UNFINISHED}"):
                _remove_if_abandoned(draft)
            self.path = Path(tempfile.mkdtemp(prefix=".", suffix=_UNFINISHED, dir=folder))
        except OSError as error:
            raise DataError(f"{folder}: cannot be written ({error}); TPSL_CACHE names another folder") from error
        lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.remove = weakref.finalize(self, _remove, self.path, lock)


def _remove(draft: Path, lock: int) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    os.close(lock)


def _remove_if_abandoned(draft: Path) -> None:
    try:
        descriptor = os.open(draft, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(draft, ignore_errors=True)
    except BlockingIOError:
        pass  # somebody works in it
    finally:
        os.close(descriptor)


def cached(key: dict[str, Any]) -> Path:
    """Return the folder in the cache that belongs to `key`, whether or not it is there."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_folder() / digest[:32]


def keep(place: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill the folder `place` of the cache.

    The folder appears only once it is complete, so an interrupted process leaves none, and processes that do the same
    at the same time do not disturb each other.
    """
    draft = Draft()
    filled = draft.path / "filled"
    try:
        make_private_folder(filled)
        write(filled)
        try:
            filled.rename(place)
        except OSError:
            if not place.is_dir():  # else another process was faster, with the same content
                raise
        sync_folder(place.parent)
    except OSError as error:
        raise DataError(f"{place}: cannot be written ({error})") from error
    finally:
        draft.remove()
