"""The runs of a search as tasks of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from tpsl.models.computing import Computing, compute, computing
from tpsl.on_ray.cluster import RayWorkers, Surroundings, surrounded


@dataclass
class RayTaskPool:
    """A `tpsl.tuning.pool.TaskPool` whose workers are processes of a cluster; the folder of a search is on all of them.

    What all tasks share is put into the cluster's memory once, and its arrays are read there by all processes of a
    machine. True labels are not in it. A task whose process is lost is done again, and goes on from what it has left
    in its folder.
    """

    ray: ModuleType
    share: RayWorkers
    workers: int = field(init=False)

    def __post_init__(self) -> None:
        self.workers = self.share.count_in(self.ray)

    @contextmanager
    def started(self, runs: Sequence[Callable[[], object]]) -> Iterator[Callable[[int], Future[object]]]:
        """Yield what starts the task of a number; at the end of the block none runs any more."""
        task = self.ray.remote(surrounded).options(**self.share.resources)
        given, here = self.ray.put(list(runs)), Surroundings.of_this_process()
        begun: list[Any] = []

        def start(number: int) -> Future[object]:
            begun.append(task.remote(here, _run, [given], number, self.share.cpus, computing()))
            future: Future[object] = begun[-1].future()
            return future

        try:
            yield start
        finally:
            self.ray.wait(begun, num_returns=len(begun)) if begun else None


_given: list[tuple[str, list[Callable[[], object]]]] = []
"""What this process was given last, if it is one of a cluster, and what it is called there."""


def _run(given: list[Any], number: int, threads: int, how: Computing) -> None:
    import ray

    (reference,) = given
    if not _given or _given[0][0] != reference.hex():
        _given[:] = [(reference.hex(), ray.get(reference))]
    torch.set_num_threads(threads)
    compute(how)
    _given[0][1][number]()
