"""Batches of features on disk, where rows that lie together are asked for together."""

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from tpsl.data.features import Features
from tpsl.data.split import Rows

PAGE_ROWS = 1 << 11
_MOST_BYTES = 1 << 28


class RecentPages:
    """Reads whole pages of `PAGE_ROWS` rows, one after the other, and keeps those that were needed last in memory.

    In a blockwise order (`tpsl.data.blockwise`) each page is read about once an epoch, and a batch is gathered from
    memory. A batch whose rows lie in more pages than are kept, 256 MiB of them, is gathered from the disk.
    """

    def __init__(self, features: Features) -> None:
        arrays = features.categorical, features.numeric
        row_bytes = sum(array.itemsize * array.shape[1] for array in arrays)
        self._most = max(1, _MOST_BYTES // (PAGE_ROWS * row_bytes))
        self._features, self._arrays = features, arrays
        # Memory that is never written to is never taken.
        self._kept = [np.empty((self._most * PAGE_ROWS, array.shape[1]), array.dtype) for array in arrays]
        self._slots: OrderedDict[int, int] = OrderedDict()
        """Page → where it is kept; the page that was needed last comes last."""

    def batch(self, rows: Rows) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return categories and numbers of these rows, as `Features.batch` does."""
        pages, page_of_row = np.unique(rows // PAGE_ROWS, return_inverse=True)
        if len(pages) > self._most:
            return self._features.batch(rows)
        slots = np.array(self._slots_of(pages.tolist()))
        places = slots[page_of_row] * PAGE_ROWS + rows % PAGE_ROWS
        categorical, numeric = self._kept
        return categorical[places], numeric[places]

    def _slots_of(self, pages: list[int]) -> list[int]:
        """Return where these pages are kept; those that are not yet are read in ascending order."""
        for page in pages:
            if page in self._slots:
                self._slots.move_to_end(page)
        missing = [page for page in pages if page not in self._slots]
        for page in missing:
            slot = len(self._slots) if len(self._slots) < self._most else self._slots.popitem(last=False)[1]
            for kept, array in zip(self._kept, self._arrays, strict=True):
                content = array[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
                kept[slot * PAGE_ROWS : slot * PAGE_ROWS + len(content)] = content
            self._slots[page] = slot
        if missing:
            self._features.release_pages()
        return [self._slots[page] for page in pages]
