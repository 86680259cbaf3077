"""Objects for several processes of this program: pickled once, and their arrays are in memory once.

The bytes of arrays are not part of the pickle (protocol 5, "out of band"): they lie in a file without a name, which
each process maps. So a process starts as fast with a gigabyte of records as with none, and all share its pages.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from tpsl.files import naming_what_does_not_fit

_ALIGNED = 64


class SharedObjects:
    """Objects that this process hands to those it starts, as an argument; there it is the objects themselves.

    A process that writes to an array changes a copy of its own.
    """

    def __init__(self, objects: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._pickled = pickle.dumps(objects, protocol=5, buffer_callback=buffers.append)
        self._parts: list[slice] = []
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it has no name, so nothing is left of it at the end
        with naming_what_does_not_fit(Path(tempfile.gettempdir())):
            for buffer in buffers:
                self._parts.append(self._written(buffer.raw()))
            self._file.flush()

    def _written(self, content: memoryview) -> slice:
        """Put the bytes of one array into the file; return where they are."""
        start = -(-self._file.tell() // _ALIGNED) * _ALIGNED
        self._file.seek(start)
        self._file.write(content)
        return slice(start, start + len(content))

    def __reduce__(self) -> tuple[Any, ...]:
        return _mapped, (reduction.DupFd(self._file.fileno()), self._pickled, self._parts)


def _mapped(descriptor: Any, pickled: bytes, parts: list[slice]) -> Any:
    """Return the objects, in the process that was given them."""
    with os.fdopen(descriptor.detach(), "rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if parts and parts[-1].stop else b"")
    return pickle.loads(pickled, buffers=[content[part] for part in parts])  # noqa: S301
