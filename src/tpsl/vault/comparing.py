"""Whether a vault holds the records of a data set: compared inside the vault, so that no true label leaves it."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.vault import coverage
from tpsl.vault.blocks import labels_at
from tpsl.vault.canonical import ids_as_text


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

    def difference(self, vault: Path, what: str = "training records") -> str:
        """Say which labels differ, and what to do about it."""
        return (
            f"{self.differing:,} of the {self.known:,} {what} that the vault {vault} knows have another label"
            f" there (the first is {self.first_differing!r}): if labels were corrected, store them with"
            f" `tpsl vault add {vault} FILE`, and the release stays; if these are other records, or another label of"
            " them, name a vault of their own with --vault FOLDER"
        )


def overlap_of(
    connection: sqlite3.Connection, ids: Any, positions: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]
) -> Overlap:
    """Compare labels with those at these positions of the vault (-1: not in it); a negative label differs from none."""
    known, stated = positions[positions >= 0], np.flatnonzero((positions >= 0) & (labels >= 0))
    given, stored = labels[stated], labels_at(connection, positions[stated])
    differing = stated[stored != given]
    first = ids_as_text(ids[int(differing[0]) :][:1])[0] if len(differing) else None
    classes = 1 + max(int(given.max(initial=0)), int(stored.max(initial=0)))
    alike = np.bincount(given, minlength=classes) @ np.bincount(stored, minlength=classes) / max(len(stated), 1)
    released = coverage.count_covered(connection, known)
    return Overlap(len(known), len(differing), released, first, len(stated) - float(alike))
