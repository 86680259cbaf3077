"""Arrays on disk: written row by row without holding them, read as memory maps."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.errors import DataError
from tpsl.files import make_private_folder, open_private


class NewArray:
    """A `.npy` file that rows are appended to; it is complete when the context ends."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, *row_shape: int) -> None:
        self._dtype, self._row_shape, self._rows = np.dtype(dtype), row_shape, 0
        self._file = open_private(path, "xb")
        self._write_header()

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add rows at the end."""
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._rows += len(rows)

    def _write_header(self) -> None:
        # NumPy leaves room in the header for the first axis to grow, so the final one fits over the first one.
        self._file.seek(0)
        shape = (self._rows, *self._row_shape)
        np.lib.format.write_array_header_1_0(
            self._file,
            {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if error is None:
                self._write_header()
                self._file.flush()
                os.fsync(self._file.fileno())


class NewTexts:
    """Strings on disk as Arrow lays them out: their ends in one array, their UTF-8 bytes in another."""

    def __init__(self, folder: Path, name: str) -> None:
        self._stack = ExitStack()
        self._ends = self._stack.enter_context(NewArray(folder / f"{name}_ends.npy", np.int32))
        self._bytes = self._stack.enter_context(NewArray(folder / f"{name}_bytes.npy", np.uint8))
        self._ends.append(np.zeros(1, np.int32))
        self._end = 0

    def append(self, texts: Any) -> None:
        """Add a `pa.Array` of strings without nulls."""
        _, ends, content = texts.buffers()
        own = np.frombuffer(ends, np.int32, len(texts) + 1, 4 * texts.offset)
        if self._end + int(own[-1] - own[0]) > np.iinfo(np.int32).max:
            raise DataError("the record ids are more than 2 GiB of text, which is too much for one array")
        self._ends.append(own[1:] - own[0] + np.int32(self._end))
        self._bytes.append(np.frombuffer(content, np.uint8)[own[0] : own[-1]])
        self._end += int(own[-1] - own[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def mapped(path: Path) -> npt.NDArray[Any]:
    """Return the array in a `.npy` file without reading it.

    It is mapped copy-on-write: writing to it changes memory, never the file, and PyTorch takes it without a copy, which
    it refuses to a read-only array.
    """
    return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))


def mapped_texts(folder: Path, name: str) -> Any:
    """Return what `NewTexts` wrote as a `pa.Array` of strings, without reading it."""
    ends, content = (pa.py_buffer(mapped(folder / f"{name}_{part}.npy")) for part in ("ends", "bytes"))
    return pa.StringArray.from_buffers(ends.size // 4 - 1, ends, content)


def kept(folder: Path, name: str, key: dict[str, Any], write: Callable[[Path], None]) -> Path:
    """Return the folder in `folder` that belongs to `name` and `key`; the first time, `write` fills it.

    The folder appears only once it is complete, so an interrupted process leaves none, and processes that do the same
    at the same time do not disturb each other.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    place = folder / f"{name}-{digest}"
    if place.is_dir():
        return place
    try:
        with tempfile.TemporaryDirectory(prefix=f".{name}-", suffix=".unfinished", dir=folder) as unfinished:
            filled = Path(unfinished) / "filled"
            make_private_folder(filled)
            write(filled)
            try:
                filled.rename(place)
            except OSError:
                if not place.is_dir():  # else another process was faster, with the same content
                    raise
    except OSError as error:
        raise DataError(f"{place}: cannot be written ({error})") from error
    return place
