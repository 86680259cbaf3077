"""Which rows of an embedding table a worker holds, where they are divided over the workers of a party."""

from __future__ import annotations

from typing import NamedTuple, Self

from tpsl.workers import Workers


class Shard(NamedTuple):
    """The rows from `start` to before `stop` of a table of n `rows`."""

    start: int
    stop: int
    rows: int

    @classmethod
    def of(cls, rows: int, workers: Workers) -> Self:
        """Return the rows that this worker holds: ranges in order of the workers' numbers, equally long up to one."""
        start, stop = (rows * number // workers.count for number in (workers.number, workers.number + 1))
        return cls(start, stop, rows)
