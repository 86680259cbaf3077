"""Keeps the memory of one step, or one block, for the next, instead of asking the operating system for it again."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h of the GNU C library


def keep_freed_memory() -> bool:
    """Tell the C library to keep what is freed; False where it is not the GNU one, which changes nothing.

    By default large tensors are mapped, touched page by page and given back in each step: measured, two thousand page
    faults a step at batch 8192, up to a tenth of its time, and as chance will have it half of the time of a release.
    The process stays as large as its largest step. Training calls it when data are loaded: what loading took and freed
    is given back first. What is larger than the tensors of a step, as the positions of all records are, is given back
    later, too.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, give_back = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return False
    give_back(0)
    settings = ((_M_MMAP_THRESHOLD, 1 << 27), (_M_TRIM_THRESHOLD, (1 << 31) - 1), (_M_TOP_PAD, 64 << 20))
    return all(mallopt(option, value) == 1 for option, value in settings)
