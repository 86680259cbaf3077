"""A list on disk that grows batch by batch: its length says how far a computation or a transfer has come."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.files import naming_what_does_not_fit, open_private, sync_folder

RowBytes = npt.NDArray[np.uint8]
"""Rows of bytes: [n, width]."""


class RowFile:
    """Rows of `width` bytes, of which there will be `rows`, appended in batches; what was appended is on the disk."""

    def __init__(self, path: Path, width: int, rows: int, batch: int) -> None:
        self.path, self.width, self.rows, self.batch = path, width, rows, batch

    @property
    def done(self) -> int:
        """How many rows are there; a batch that a killed process has written in part is not."""
        there = self.path.stat().st_size // self.width if self.path.exists() else 0
        return there if there == self.rows else there - there % self.batch

    @property
    def is_complete(self) -> bool:
        """Whether all rows are there."""
        return self.done == self.rows

    def append(self, rows: RowBytes) -> None:
        """Write the next batch, durably."""
        end, is_new = self.done * self.width, not self.path.exists()
        with naming_what_does_not_fit(self.path), open_private(self.path, "ab") as file:
            file.truncate(end)
            file.write(np.ascontiguousarray(rows).data)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.path.parent)

    def read(self) -> RowBytes:
        """Return the rows that are there; they are read from the file as they are used."""
        if self.done == 0:
            return np.empty((0, self.width), np.uint8)
        return np.memmap(self.path, np.uint8, "r", shape=(self.done, self.width))
