"""A function of batches, computed by the processes of a Ray cluster; the results come in the order of the batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from tpsl.on_ray.cluster import RayWorkers, Surroundings, surrounded


def map_on(ray: ModuleType, share: RayWorkers) -> Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]:
    """Return what Python's `map` does, on a cluster.

    Two batches for each process are under way, no more, whatever their number. A batch whose process is lost is
    computed again: whoever takes the results gets each once.
    """

    def mapped(work: Callable[[Any], Any], batches: Iterable[Any]) -> Iterator[Any]:
        task = ray.remote(surrounded).options(**share.resources)
        given, here, at_once = ray.put(work), Surroundings.of_this_process(), 2 * share.count_in(ray)
        waiting: deque[Any] = deque()
        for batch in batches:
            waiting.append(task.remote(here, _called, given, batch))
            if len(waiting) == at_once:
                yield ray.get(waiting.popleft())
        while waiting:
            yield ray.get(waiting.popleft())

    return mapped


def _called(work: Callable[[Any], Any], batch: Any) -> Any:
    return work(batch)
