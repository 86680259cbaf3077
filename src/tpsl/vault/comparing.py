"""Whether a vault holds the records of a data set: compared inside the vault, so that no true label leaves it."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.vault.storage import labels_at


@dataclass(frozen=True)
class Overlap:
    """How many of some records a vault knows, with another label than was given, and with a release."""

    known: int
    differing: int
    released: int
    first_differing: str | None
    """The id of the first record with another label."""
    by_chance: float
    """How many labels would differ on average if those of the vault had nothing to do with those given."""

    @property
    def same(self) -> bool:
        """The vault has records in common with the data, and the same labels of all of them."""
        return self.known > 0 and not self.differing

    @property
    def similar(self) -> bool:
        """The records in common are the same ones, maybe with corrected labels: far fewer differ than by chance."""
        return self.same or 2 * self.differing < self.by_chance

    def difference(self, vault: Path) -> str:
        """Say which labels differ, and what to do about it."""
        return (
            f"{self.differing:,} of the {self.known:,} training records that the vault {vault} knows have another label"
            f" there (the first is {self.first_differing!r}): if labels were corrected, store them with"
            f" `tpsl vault add {vault} FILE`, and the release stays; if these are other records, or another label of"
            " them, name a vault of their own with --vault FOLDER"
        )


class LabelComparison:
    """Labels compared with those of a vault, part by part."""

    def __init__(self, connection: sqlite3.Connection, classes: int) -> None:
        self._connection, self._given, self._stored = connection, np.zeros(classes), np.zeros(classes)

    def differing(self, positions: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Where the vault has another label than the one given; a negative label is unknown and differs from none."""
        differing = np.zeros(len(positions), np.bool_)
        stated = np.flatnonzero((positions >= 0) & (labels >= 0))
        stored = labels_at(self._connection, positions[stated])
        differing[stated] = stored != labels[stated]
        self._given += np.bincount(labels[stated], minlength=len(self._given))[: len(self._given)]
        self._stored += np.bincount(stored, minlength=len(self._stored))
        return differing

    def by_chance(self) -> float:
        """How many of the labels so far would differ on average if they were independent of the vault's."""
        compared = float(self._stored.sum())
        return compared - float(self._given @ self._stored) / compared if compared else 0.0
