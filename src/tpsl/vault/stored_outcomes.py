"""Stored outcomes against stored labels, chunk by chunk: does the noise look like that of the mechanism?"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism
from tpsl.vault.blocks import CHUNK
from tpsl.vault.ledger import Entry, Series
from tpsl.vault.outcome_tests import Agreement, Bits, Expected, Neighbours, Rates, accusations

LEVEL = 1e-6
"""A sound vault is accused by its outcomes with at most this probability, all tests counted."""

CANNOT_SEE = (
    "the noise was tested as a whole: verification cannot see a few records without noise (about one in a hundred) "
    "in a single release, noise whose key somebody else knows, copies of this vault, or entries cut off at the end of "
    "the ledger; `tpsl audit` finds the first"
)

_Draw = tuple[Series, int]


class _Sample:
    """The outcomes of one series."""

    def __init__(self, release: Entry, mechanism: Mechanism) -> None:
        self.name, self.expected = f"release {release.sequence}", Expected(mechanism, release.sequence)
        self.rates, self.neighbours = Rates(self.expected), Neighbours(self.expected)


class StoredOutcomes:
    """Rates, neighbours and agreement of everything that a vault has released, in the memory of one chunk.

    Releases of one series are one sample. `changed` is how many labels were changed after their release at most: which
    ones is not known, so all tests allow for any choice of that many.
    """

    def __init__(self, changed: int) -> None:
        self._changed = changed
        self._samples: dict[Series, _Sample] = {}
        self._agreements: dict[tuple[_Draw, _Draw], Agreement] = {}
        self._chunk = -1
        self._labels = np.full(CHUNK, -1, np.int64)
        self._bits: dict[_Draw, tuple[Bits, Bits]] = {}
        self._before: tuple[npt.NDArray[np.int64], dict[_Draw, tuple[Bits, Bits]]] = (self._labels, {})

    def take(
        self,
        chunk: int,
        release: Entry,
        mechanism: Mechanism,
        places: npt.NDArray[np.intp],
        labels: npt.NDArray[np.int64],
        outcomes: npt.NDArray[Any],
    ) -> None:
        """Take the outcomes `[draws, records, …]` that a release gave to the records at these places of a chunk."""
        series = release.series
        if series not in self._samples:
            self._samples[series] = _Sample(release, mechanism)
        sample = self._samples[series]
        if chunk != self._chunk:
            self._end_chunk(chunk)
        self._labels[places] = labels
        for draw, drawn in enumerate(outcomes):
            sample.rates.take(labels, drawn)
            bits = sample.expected.bits(labels, drawn)
            sample.neighbours.take(bits, labels)
            known, values = self._bits.setdefault(
                (series, draw), (np.zeros(CHUNK, np.bool_), np.zeros(CHUNK, np.bool_))
            )
            known[places], values[places] = True, bits

    def problems(self) -> list[str]:
        """Return what a sound vault does not show, a sentence each."""
        self._end_chunk(-1)
        found = []
        for series, sample in self._samples.items():
            for test in (sample.rates, sample.neighbours):
                found.append(test.tested(sample.name, self._changed * series.draws))
        for (one, other), agreement in self._agreements.items():
            found.append(agreement.tested(self._pair_name(one, other), self._changed))
        return accusations(found, LEVEL)

    def _pair_name(self, one: _Draw, other: _Draw) -> str:
        (series, draw), (other_series, other_draw) = one, other
        name = self._samples[series].name
        if series != other_series:
            return f"{name} and {self._samples[other_series].name}"
        if draw != other_draw:
            return f"{name}, draws {draw + 1} and {other_draw + 1}"
        return f"{name}, chunks of {CHUNK:,} records"

    def _end_chunk(self, following: int) -> None:
        """Compare all draws for the records of the chunk, and each draw with itself one chunk before."""
        for one, other in combinations(self._bits, 2):
            # Seeded noise is not private anyway, and the same seed may give the same noise twice.
            if one[0].seed is None and other[0].seed is None:
                self._compare((one, other), self._bits[one], self._bits[other], self._labels)
        labels, before = self._before
        for draw in self._bits.keys() & before.keys():
            if self._chunk % 2:  # so that no record is compared twice
                alike = self._labels == labels
                known, values = self._bits[draw]
                self._compare((draw, draw), before[draw], (known & alike, values), self._labels)
        self._before = (self._labels, self._bits if following == self._chunk + 1 else {})
        self._labels, self._bits, self._chunk = np.full(CHUNK, -1, np.int64), {}, following

    def _compare(
        self,
        draws: tuple[_Draw, _Draw],
        one: tuple[Bits, Bits],
        other: tuple[Bits, Bits],
        labels: npt.NDArray[np.int64],
    ) -> None:
        both = one[0] & other[0]
        if both.any():
            if draws not in self._agreements:
                self._agreements[draws] = Agreement(*(self._samples[series].expected for series, _ in draws))
            self._agreements[draws].take(one[1][both], other[1][both], labels[both])
