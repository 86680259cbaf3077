"""Which records a release covers, and the outcomes it gave them, chunk by chunk.

A release writes one row for each chunk of 65,536 positions that it touches: a compressed bitmap of the positions it
covers, and the outcomes of these positions in order, draw after draw. Rows are never rewritten. The records' history
follows from the bitmaps: `histories` says for each record under which releases it went out.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism
from tpsl.vault.blocks import CHUNK, Positions, by_chunk, chunk_count
from tpsl.vault.errors import VaultError
from tpsl.vault.store import Store

Mask = npt.NDArray[np.bool_]
History = tuple[int, ...]
"""The sequence numbers of the releases that a record was part of, ascending."""


def pack(mask: Mask) -> bytes:
    """A mask over one chunk as a compressed bitmap."""
    return zlib.compress(np.packbits(mask).tobytes(), 1)


def unpack(bitmap: bytes) -> Mask:
    """The mask over one chunk that `pack` packed."""
    try:
        bits = np.frombuffer(zlib.decompress(bitmap), np.uint8)
    except zlib.error as error:
        raise VaultError("a coverage bitmap is damaged; run verify on the vault") from error
    if bits.size != CHUNK // 8:
        raise VaultError("a coverage bitmap has the wrong length; run verify on the vault")
    return np.unpackbits(bits).view(np.bool_)


def decode_outcomes(blob: bytes, mechanism: Mechanism, draws: int, records: int) -> npt.NDArray[Any]:
    """The outcomes of one row as an array [draws, records, *outcome_shape]."""
    dtype = mechanism.outcome_dtype.newbyteorder("<")
    shape = (draws, records, *mechanism.outcome_shape)
    if len(blob) != int(np.prod(shape)) * dtype.itemsize:
        raise VaultError("the outcomes of a release have the wrong length; run verify on the vault")
    return np.frombuffer(blob, dtype).reshape(shape)


def encode_outcomes(outcomes: npt.NDArray[Any]) -> bytes:
    """The bytes that `decode_outcomes` reads."""
    return outcomes.astype(outcomes.dtype.newbyteorder("<"), copy=False).tobytes()


def masks(store: Store, chunk: int) -> list[tuple[int, Mask]]:
    """(sequence number of the release, positions covered) for each release that touches this chunk, oldest first."""
    rows = store.execute(
        "SELECT entry, covered FROM outcomes WHERE label = ? AND chunk = ? ORDER BY entry", (store.label, chunk)
    )
    return [(entry, unpack(covered)) for entry, covered in rows]


def histories(covers: Iterable[tuple[int, Mask]]) -> tuple[npt.NDArray[np.intp], list[History]]:
    """For each position of a chunk, the index of its history in the list that is returned too.

    Records share few histories (mostly one), so exact sums can be made for each history instead of for each record.
    """
    index = np.zeros(CHUNK, np.intp)
    found: list[History] = [()]
    for entry, mask in covers:
        for old in np.flatnonzero(np.bincount(index[mask], minlength=len(found))):
            index[mask & (index == old)] = len(found)
            found.append((*found[old], entry))
    return index, found


def chunk_histories(store: Store, chunk: int) -> tuple[npt.NDArray[np.intp], list[History]]:
    """For each position of a chunk, the index of its history in the list that is returned too."""
    return histories(masks(store, chunk))


def covered_by(covers: Iterable[tuple[int, Mask]], entries: Collection[int] | None = None) -> Mask:
    """The positions of a chunk that one of these releases covers; None: any release."""
    covered = np.zeros(CHUNK, np.bool_)
    for entry, mask in covers:
        if entries is None or entry in entries:
            covered |= mask
    return covered


class PositionSet:
    """A set of positions, as packed masks by chunk: at most a bit for each record of the chunks that have any."""

    def __init__(self) -> None:
        self._packed: dict[int, bytes] = {}

    @classmethod
    def up_to(cls, records: int) -> Self:
        """All positions of a vault of n records."""
        found = cls()
        for chunk in range(chunk_count(records)):
            found.put(chunk, np.arange(CHUNK) < records - chunk * CHUNK)
        return found

    def __len__(self) -> int:
        return sum(int(mask.sum()) for _, mask in self.masks())

    def chunks(self) -> list[int]:
        """The chunks that have any of the positions, ascending."""
        return sorted(self._packed)

    def masks(self) -> Iterator[tuple[int, Mask]]:
        """(chunk, its positions that are in the set) for each chunk that has any, ascending."""
        return ((chunk, self.mask(chunk)) for chunk in self.chunks())

    def mask(self, chunk: int) -> Mask:
        """The positions of a chunk that are in the set."""
        return unpack(self._packed[chunk]) if chunk in self._packed else np.zeros(CHUNK, np.bool_)

    def positions(self) -> Positions:
        """All positions, ascending."""
        by_chunk = (chunk * CHUNK + np.flatnonzero(mask) for chunk, mask in self.masks())
        return np.concatenate([np.zeros(0, np.int64), *by_chunk])

    def put(self, chunk: int, mask: Mask) -> None:
        """Have these positions of a chunk in the set, and no others of it."""
        self._packed[chunk] = pack(mask)

    def add(self, positions: Positions) -> None:
        """Put positions into the set."""
        for chunk, rows in by_chunk(positions):
            mask = self.mask(chunk)
            mask[positions[rows] % CHUNK] = True
            self.put(chunk, mask)

    def has_again(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """For each of these positions, whether it is in the set, or has come before among them."""
        again = np.zeros(len(positions), np.bool_)
        for chunk, rows in by_chunk(positions):
            places = positions[rows] % CHUNK
            again[rows] = self.mask(chunk)[places]
            again[np.delete(rows, np.unique(places, return_index=True)[1])] = True
        return again


def count_covered(store: Store, positions: npt.NDArray[np.int64]) -> int:
    """How many of the records at these positions have a release of any kind."""
    count = 0
    for chunk, rows in by_chunk(positions):
        count += int(covered_by(masks(store, chunk))[positions[rows] % CHUNK].sum())
    return count
