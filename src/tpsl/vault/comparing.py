"""Whether a vault holds the records of a data set: compared inside the vault, so that no true label leaves it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.vault import coverage
from tpsl.vault.blocks import labels_at
from tpsl.vault.canonical import ids_as_text
from tpsl.vault.id_index import Found
from tpsl.vault.store import Store


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


def overlap_of(store: Store, ids: Any, found: Iterable[Found], labels: npt.NDArray[np.int64]) -> Overlap:
    """Compare labels with those of the records that were found in the vault; a negative label differs from none."""
    known = differing = released = compared = 0
    first, classes_given, classes_stored = len(labels), Counter[int](), Counter[int]()
    for rows, positions in found:
        told = labels[rows]
        stated = np.flatnonzero(told >= 0)
        given, stored = told[stated], labels_at(store, positions[stated])
        others = rows[stated[stored != given]]
        first = int(others.min(initial=first))
        classes_given.update(dict(enumerate(np.bincount(given).tolist())))
        classes_stored.update(dict(enumerate(np.bincount(stored).tolist())))
        known, differing, compared = known + len(rows), differing + len(others), compared + len(stated)
        released += coverage.count_covered(store, positions)
    example = ids_as_text(ids[first:][:1])[0] if differing else None
    return Overlap(known, differing, released, example, _expected(classes_given, classes_stored, compared))


def differing_by_chance(given: npt.NDArray[np.int64], stored: npt.NDArray[np.int64]) -> float:
    """How many labels would differ on average from stored ones that have nothing to do with them."""
    return _expected(Counter(given.tolist()), Counter(stored.tolist()), len(given))


def _expected(given: Counter[int], stored: Counter[int], compared: int) -> float:
    alike = sum(count * stored[label] for label, count in given.items()) / max(compared, 1)
    return compared - alike
