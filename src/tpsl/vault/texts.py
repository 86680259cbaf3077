"""Columns of texts: record ids and units, many at once, as one run of bytes.

A text is UTF-8 and ends with a zero byte, which no id and no unit contains. The bytes of a column are what the vault
stores, what its SHA-256 digests run over and what look-ups compare: nothing is converted on the way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.tables import ArrowArray
from tpsl.vault.errors import VaultError

Hashes = npt.NDArray[np.uint64]

_NOTHING, _END = pa.scalar("", pa.large_string()), pa.scalar("\0", pa.large_string())


class Texts:
    """A column of texts, each ending with a zero byte, as an Arrow array of bytes."""

    def __init__(self, terminated: ArrowArray) -> None:
        self._terminated = terminated

    @classmethod
    def of(cls, texts: Iterable[str] | ArrowArray) -> Self:
        """Take texts without a zero character: a list, or an Arrow column of any type of text."""
        column = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.large_string())
        plain = pc.cast(column, pa.large_string())
        return cls(pc.binary_join_element_wise(plain, _NOTHING, _END).view(pa.large_binary()))

    @classmethod
    def from_bytes(cls, stored: bytes) -> Self:
        """Take the bytes that `to_bytes` gave; others are a `VaultError`."""
        if stored and stored[-1] != 0:
            raise VaultError("a column of texts is damaged; run verify on the vault")
        ends = np.flatnonzero(np.frombuffer(stored, np.uint8) == 0)
        offsets = pa.py_buffer(np.concatenate([np.zeros(1, np.int64), ends + 1]))
        return cls(
            pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends), [None, offsets, pa.py_buffer(stored)])
        )

    @classmethod
    def joined(cls, parts: Iterable[Texts]) -> Self:
        """Put columns one after another."""
        columns = [part._terminated for part in parts]
        return cls(pa.concat_arrays(columns) if columns else pa.array([], pa.large_binary()))

    @classmethod
    def empty(cls, count: int) -> Self:
        """Return a column of empty texts."""
        return cls.from_bytes(bytes(count))

    def __len__(self) -> int:
        return len(self._terminated)

    def __getitem__(self, at: int) -> str:
        return str(self._terminated[at].as_py()[:-1].decode())

    def to_bytes(self) -> memoryview:
        """All texts, one after the other."""
        offsets = self._offsets()
        data = self._terminated.buffers()[2]
        return memoryview(b"") if data is None else memoryview(data)[int(offsets[0]) : int(offsets[-1])]

    def to_list(self) -> list[str]:
        """The texts without their ends."""
        return bytes(self.to_bytes()).decode().split("\0")[:-1]

    @property
    def terminated(self) -> ArrowArray:
        """The texts with their ends, as an Arrow array of bytes, of which `Texts` can be made again."""
        return self._terminated

    def to_arrow(self) -> ArrowArray:
        """The texts without their ends, as an Arrow column."""
        return pc.binary_slice(self._terminated, 0, -1).cast(pa.large_string())

    def are_sound(self) -> bool:
        """Whether no text is empty, and none has a zero character inside."""
        ends = np.count_nonzero(np.frombuffer(self.to_bytes(), np.uint8) == 0)
        return ends == len(self) and bool((np.diff(self._offsets()) > 1).all())

    def part(self, start: int, stop: int) -> Texts:
        """The texts from one row to before another."""
        return Texts(self._terminated[start:stop])

    def take(self, rows: npt.NDArray[Any]) -> Texts:
        """The texts of these rows (indices, or a mask), in that order."""
        if rows.dtype == np.bool_:
            return self if rows.all() else Texts(self._terminated.filter(pa.array(rows)))
        return Texts(self._terminated.take(pa.array(rows)))

    def equal(self, others: Texts) -> npt.NDArray[np.bool_]:
        """For each row, whether the other column has the same text there."""
        found: npt.NDArray[np.bool_] = pc.equal(self._terminated, others._terminated).to_numpy(zero_copy_only=False)
        return found

    def sorted_rows(self) -> npt.NDArray[np.int64]:
        """The rows in the order of their bytes, which is that of the texts' code points."""
        order: npt.NDArray[np.int64] = pc.sort_indices(self._terminated).to_numpy().astype(np.int64)
        return order

    def positions_in(self, others: Texts) -> npt.NDArray[np.int64]:
        """For each row, where the other column has the same text first; -1: nowhere."""
        found = pc.index_in(self._terminated, value_set=others._terminated).fill_null(-1)
        return np.asarray(found, np.int64)

    def numbered(self) -> tuple[npt.NDArray[np.int64], int]:
        """Number the different texts: return the number of each row, and how many there are."""
        encoded = self._terminated.dictionary_encode()
        return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)

    def hashes(self, key: bytes) -> tuple[Hashes, Hashes]:
        """Two numbers of 64 bits for each text, the same for equal texts under one key: `Σ a_i b_i` and `Σ a'_i b_i`.

        The b_i are the bytes of a text, the factors a_i and a'_i random, sums modulo 2^64. Whoever does not know the
        key cannot choose texts that share them: of two different texts, at a byte where they differ, `a_i (b_i - c_i)`
        takes each of its values with probability at most 2^-57, so both numbers agree with at most 2^-114.
        """
        offsets = self._offsets()
        starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
        if not len(self):
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        content = np.frombuffer(self.to_bytes(), np.uint8)
        column = np.arange(len(content), dtype=np.int32) - np.repeat(starts.astype(np.int32), lengths)
        sums = np.zeros((2, len(content) + 1), np.uint64)
        for row, factors in zip(sums, _factors(key, int(lengths.max()).bit_length()), strict=True):
            np.cumsum(content * factors[column], out=row[1:])  # over all texts: a difference is the sum of one
        one, two = sums[:, starts + lengths] - sums[:, starts]
        return one, two

    def _offsets(self) -> npt.NDArray[np.int64]:
        buffer = self._terminated.buffers()[1]
        if buffer is None or not len(self):
            return np.zeros(1, np.int64)
        first = self._terminated.offset
        return np.frombuffer(buffer, np.int64)[first : first + len(self) + 1]


@lru_cache(4)
def _factors(key: bytes, bits: int) -> npt.NDArray[np.uint64]:
    """Both factors of each byte of a text with fewer than 2^bits bytes."""
    return np.frombuffer(hashlib.shake_128(key).digest(16 << bits), "<u8").reshape(-1, 2).T.copy()
