"""Pairs of numbers, more of them than fit into memory, put into the order of one of the two."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from tpsl.vault.spill_file import SpillFile

Words = npt.NDArray[np.uint64]

_IN_MEMORY = 1 << 19
_PART_BITS = 8


class Pairs:
    """Pairs (key, value) that are taken in as they come, and given back in parts, each with a range of keys.

    Time is linear in their number and memory that of a part, of which there are 256: 60 MB for 10^9 pairs.
    """

    def __init__(self, folder: Path, key_bits: int = 64) -> None:
        self._folder, self._opened = folder, ExitStack()
        self._shift = np.uint64(max(0, key_bits - _PART_BITS))
        self._pending: list[Words] = []
        self._pending_count = 0
        self._file: SpillFile | None = None
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def take(self, keys: Words, values: npt.NDArray[np.integer]) -> None:
        """Take in pairs; no key has more bits than was said."""
        self._pending.append(np.stack([keys, values.astype(np.uint64)], axis=1))
        self.count += len(keys)
        self._pending_count += len(keys)
        if self._pending_count >= _IN_MEMORY:
            self._flush()

    def parts(self) -> Iterator[Words]:
        """All pairs, one in a row; the ranges of the parts follow each other, and within a part nothing is ordered."""
        if self._file is None:
            yield np.concatenate([np.empty((0, 2), np.uint64), *self._pending])
            return
        file = self._flush()
        for part in range(len(file)):
            yield np.frombuffer(file.read(part), np.uint64).reshape(-1, 2)

    def _flush(self) -> SpillFile:
        file = self._file = self._file or self._opened.enter_context(SpillFile(self._folder, 1 << _PART_BITS))
        rows = np.concatenate([np.empty((0, 2), np.uint64), *self._pending])
        self._pending, self._pending_count = [], 0
        part = (rows[:, 0] >> self._shift).astype(np.uint8)
        rows = rows[np.argsort(part, kind="stable")]
        ends = np.cumsum(np.bincount(part, minlength=len(file))).tolist()
        for number, (start, end) in enumerate(pairwise([0, *ends])):
            file.write(number, rows[start:end].tobytes())
        return file
