"""Whether a vault holds the records of a data set: compared inside the vault, so that no true label leaves it."""

import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.vault import coverage
from tpsl.vault.blocks import labels_at
from tpsl.vault.canonical import ids_as_text

_COMPARED_AT_ONCE = 1 << 22


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
    known = differing = released = compared = 0
    first, classes_given, classes_stored = None, Counter[int](), Counter[int]()
    for start in range(0, len(positions), _COMPARED_AT_ONCE):
        here, told = (column[start : start + _COMPARED_AT_ONCE] for column in (positions, labels))
        stated = np.flatnonzero((here >= 0) & (told >= 0))
        given, stored = told[stated], labels_at(connection, here[stated])
        others = stated[stored != given]
        if first is None and len(others):
            first = ids_as_text(ids[start + int(others[0]) :][:1])[0]
        classes_given.update(dict(enumerate(np.bincount(given).tolist())))
        classes_stored.update(dict(enumerate(np.bincount(stored).tolist())))
        in_vault = here[here >= 0]
        known, differing, compared = known + len(in_vault), differing + len(others), compared + len(stated)
        released += coverage.count_covered(connection, in_vault)
    return Overlap(known, differing, released, first, _expected(classes_given, classes_stored, compared))


def differing_by_chance(given: npt.NDArray[np.int64], stored: npt.NDArray[np.int64]) -> float:
    """How many labels would differ on average from stored ones that have nothing to do with them."""
    return _expected(Counter(given.tolist()), Counter(stored.tolist()), len(given))


def _expected(given: Counter[int], stored: Counter[int], compared: int) -> float:
    alike = sum(count * stored[label] for label, count in given.items()) / max(compared, 1)
    return compared - alike
