"""Whether a vault holds the records of a data set: compared inside the vault, so that no true label leaves it."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.vault import coverage
from tpsl.vault.storage import CHUNK, labels_at


@dataclass(frozen=True)
class Overlap:
    """How many of some records a vault knows, with another label than was given, and with a release."""

    known: int
    differing: int
    released: int
    first_differing: str | None
    """The id of the first record with another label."""

    @property
    def same(self) -> bool:
        """The vault has records in common with the data, and the same labels of all of them."""
        return self.known > 0 and not self.differing

    def difference(self, vault: Path) -> str:
        """Say which labels differ, and what to do about it."""
        return (
            f"{self.differing:,} of the {self.known:,} training records that the vault {vault} knows have another label"
            f" there (the first is {self.first_differing!r}): if labels were corrected, store them with"
            f" `tpsl vault add {vault} FILE`, and the release stays; if these are other records, or another label of"
            " them, name a vault of their own with --vault FOLDER"
        )


def differing_labels(
    connection: sqlite3.Connection, positions: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Where the vault has another label than the one given; a negative label is unknown and differs from none."""
    differing = np.zeros(len(positions), np.bool_)
    stated = np.flatnonzero((positions >= 0) & (labels >= 0))
    differing[stated] = labels_at(connection, positions[stated]) != labels[stated]
    return differing


def count_released(connection: sqlite3.Connection, positions: npt.NDArray[np.int64]) -> int:
    """How many of the records at these positions have a release of any kind."""
    count = 0
    for chunk, rows in coverage.by_chunk(positions):
        released = np.zeros(CHUNK, np.bool_)
        for _, mask in coverage.masks(connection, chunk):
            released |= mask
        count += int(released[positions[rows] % CHUNK].sum())
    return count
