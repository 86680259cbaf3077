"""Tables read by a Ray Data job: many files side by side on a cluster, and what they hold in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from types import ModuleType
from typing import Any

import pyarrow as pa

from tpsl.on_ray.cluster import RayWorkers, Surroundings, ray_data

_NUMBER = "number of the item"


def stream_tables(
    ray: ModuleType, share: RayWorkers, read: Callable[[Any], Iterable[Any]], items: Sequence[Any]
) -> Iterator[Iterator[Any]]:
    """Yield for each item, in order, the `pa.Table`s that `read` makes of it; those are taken before the next item is.

    Items are read side by side, a few ahead of what is taken, and again if a process is lost: whoever takes the tables
    gets each row once. How the rows of an item are divided into tables is not that of `read`.
    """
    data = ray_data()
    data.DataContext.get_current().execution_options.preserve_order = True
    numbers = data.from_items([{_NUMBER: number} for number in range(len(items))], override_num_blocks=len(items))
    tables = numbers.map_batches(
        _read,
        fn_kwargs={"here": Surroundings.of_this_process(), "read": read, "given": [ray.put(list(items))]},
        batch_size=1,
        batch_format="numpy",
        concurrency=min(share.count_in(ray), len(items)),
        **share.resources,
    )
    parts = (part for table in tables.iter_batches(batch_size=None, batch_format="pyarrow") for part in _parts(table))
    done = 0
    for number, group in groupby(parts, key=lambda part: part[0]):
        yield from (iter(()) for _ in range(done, number))  # items without rows
        yield (table for _, table in group)
        done = number + 1
    yield from (iter(()) for _ in range(done, len(items)))


def _read(
    batch: dict[str, Any], here: Surroundings, read: Callable[[Any], Iterable[Any]], given: list[Any]
) -> Iterator[Any]:
    import ray

    here.enter()
    items = ray.get(given[0])
    for number in batch[_NUMBER]:
        for table in read(items[number]):
            yield table.append_column(_NUMBER, pa.array([number] * len(table), pa.int64()))


def _parts(table: Any) -> Iterator[tuple[int, Any]]:
    """Yield the rows of each item in a table of several."""
    numbers = table.column(_NUMBER).to_numpy()
    rows = table.drop_columns([_NUMBER])
    start = 0
    while start < len(numbers):
        stop = start + int((numbers[start:] == numbers[start]).sum())
        yield int(numbers[start]), rows.slice(start, stop - start)
        start = stop
