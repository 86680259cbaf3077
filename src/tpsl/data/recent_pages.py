"""Batches of features on disk, where rows that lie together are asked for together."""

import numpy as np
import numpy.typing as npt

from tpsl.data.features import Features
from tpsl.data.split import Rows

PAGE_ROWS = 1 << 11
_MOST_BYTES = 1 << 28
_NOWHERE = -1


class RecentPages:
    """Reads whole pages of `PAGE_ROWS` rows and keeps those that were needed last in memory, 256 MiB of them.

    In a blockwise order (`tpsl.data.blockwise`) each page is read about once an epoch, and a batch is gathered from
    memory. A batch whose rows lie in more pages than can be kept is gathered from the disk.
    """

    def __init__(self, features: Features) -> None:
        arrays = features.categorical, features.numeric
        row_bytes = sum(array.itemsize * array.shape[1] for array in arrays)
        pages, most = -(-len(features) // PAGE_ROWS), max(1, _MOST_BYTES // (PAGE_ROWS * row_bytes))
        self._features, self._arrays, self._batches = features, arrays, 0
        # Memory that is never written to is never taken.
        self._kept = [np.empty((most * PAGE_ROWS, array.shape[1]), array.dtype) for array in arrays]
        self._page_in = np.full(most, _NOWHERE)
        """Slot → the page that it holds."""
        self._slot_of = np.full(pages, _NOWHERE)
        """Page → the slot that holds it."""
        self._needed = np.zeros(pages, np.int64)
        """Page → the number of the last batch that needed it."""

    def batch(self, rows: Rows) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return categories and numbers of these rows, as `Features.batch` does."""
        pages = rows // PAGE_ROWS
        self._batches += 1
        self._needed[pages] = self._batches
        slots = self._slot_of[pages]
        missing = slots == _NOWHERE
        if missing.any():
            if not self._read(np.unique(pages[missing])):
                return self._features.batch(rows)
            slots = self._slot_of[pages]
        places = slots * PAGE_ROWS + rows % PAGE_ROWS
        categorical, numeric = self._kept
        return categorical.take(places, axis=0, mode="clip"), numeric.take(places, axis=0, mode="clip")

    def _read(self, pages: Rows) -> bool:
        """Read pages, one after the other, in place of those that were needed longest ago.

        False if there is no place for all of them beside the others that this batch needs: then none is read.
        """
        needed = np.where(self._page_in == _NOWHERE, 0, self._needed[self._page_in])
        slots = np.argsort(needed, kind="stable")[: len(pages)]
        if len(slots) < len(pages) or needed[slots[-1]] == self._batches:
            return False
        left = self._page_in[slots]
        self._slot_of[left[left != _NOWHERE]] = _NOWHERE
        self._slot_of[pages], self._page_in[slots] = slots, pages
        for page, slot in zip(pages.tolist(), slots.tolist(), strict=True):
            for kept, array in zip(self._kept, self._arrays, strict=True):
                content = array[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
                kept[slot * PAGE_ROWS : slot * PAGE_ROWS + len(content)] = content
        self._features.release_pages()
        return True
