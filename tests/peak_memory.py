"""What a piece of work allocates at most, in NumPy, Python and Arrow, on top of what was there before."""

import tracemalloc
from collections.abc import Callable

import pyarrow as pa


def peak_bytes(work: Callable[[], object]) -> int:
    """Run it; return the sum of the two peaks, which is at least the peak of the sum."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
