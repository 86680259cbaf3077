"""All ids of a vault in the order of their text, part by part, in bounded memory and linear time."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Self

import numpy as np

from tpsl.vault.blocks import CHUNK, Positions, chunk_count, count_records, ids_between
from tpsl.vault.spill_file import TextParts
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

_IDS_AT_ONCE = 1 << 21
_MOST_PARTS = 512
_SAMPLE = 64
"""Sampled ids for each part: parts are of about one size."""


class IdsInOrder:
    """The ids that a vault has now; it is read when this is made, and not after.

    Where they are more than fit into memory, each block is sorted and cut at the same texts, and its pieces go to
    a spill file beside the vault.
    """

    def __init__(self, store: Store) -> None:
        records = count_records(store)
        parts = min(_MOST_PARTS, max(1, -(-records // _IDS_AT_ONCE)))
        self._parts = TextParts(store.folder, parts)
        try:
            cuts = _cuts(store, records, parts)
            for start in range(0, records, CHUNK):
                self._cut(ids_between(store, start, start + CHUNK), start, cuts)
        except BaseException:
            self._parts.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._parts.close()

    def parts(self) -> Iterator[tuple[Texts, Positions]]:
        """Ids in order, and their positions; each part goes on where the last one ended."""
        for texts, positions in self._parts.read():
            order = texts.sorted_rows()
            yield texts.take(order), positions[order]

    def _cut(self, ids: Texts, first: int, cuts: list[str]) -> None:
        """Take in a block, whose positions begin with `first`."""
        order = ids.sorted_rows()
        ids = ids.take(order)
        bounds = [0, *(bisect_left(ids, cut) for cut in cuts), len(ids)]
        for part, (start, stop) in enumerate(pairwise(bounds)):
            self._parts.write(part, ids.part(start, stop), first + order[start:stop])


def _cuts(store: Store, records: int, parts: int) -> list[str]:
    """Texts between which parts have about as many ids each."""
    if parts == 1:
        return []
    step = max(1, records // (parts * _SAMPLE))
    chunks = (ids_between(store, chunk * CHUNK, (chunk + 1) * CHUNK) for chunk in range(chunk_count(records)))
    sample = Texts.joined(ids.take(np.arange(0, len(ids), step)) for ids in chunks)
    ordered = sample.take(sample.sorted_rows())
    return [ordered[part * len(ordered) // parts] for part in range(1, parts)]
