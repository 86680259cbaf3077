"""Columns side by side: NumPy and PyArrow let other threads run while they work on one."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return what `work` makes of each item, in order; the first error is raised."""
    with ThreadPoolExecutor(cpu_count()) as pool:
        return list(pool.map(work, items))
