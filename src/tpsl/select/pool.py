"""Work on several cores: tasks in order, each as soon as a worker is free and what it needs is done."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from tpsl.data.dataset import Dataset
from tpsl.models.computing import compute_in, precision
from tpsl.models.model_config import Precision
from tpsl.processes import end_with_parent
from tpsl.registry import use, used
from tpsl.select.shared_objects import SharedObjects
from tpsl.training.job import Job
from tpsl.training.one_process import load_records
from tpsl.training.own_parts import OwnParts

_IMPORTED_ONCE = ["tpsl.training.one_process", "torch.fx.experimental.symbolic_shapes"]
"""What workers have from the beginning; PyTorch imports the latter, and with it SymPy, in the first backward pass."""


@dataclass(frozen=True)
class Task:
    """Something to do, named so that others can wait for it; what it finds out it leaves in files."""

    name: str
    run: Callable[[], object]
    """A function that another process can import: a `functools.partial` of one at the top of a module."""
    needs: frozenset[str] = frozenset()
    """Tasks that come first; a name that no task has is taken as done."""


def run_tasks(tasks: Sequence[Task], workers: int) -> Iterator[str]:
    """Run all tasks; yield the name of each when it is done.

    `workers` are processes of this machine; one worker is this process. A task starts before those after it
    in the list, unless it has to wait for what it needs. The first error ends the rest: tasks that run are finished,
    none is started. Workers compute with one thread. Each is given all tasks when it starts, so an object that several
    tasks hold is one object there, and its arrays are in memory once.
    """
    known = {task.name for task in tasks}
    pending = [Task(task.name, task.run, task.needs & known) for task in tasks]
    if workers == 1:
        while task := _take_ready(pending, pending):
            task.run()
            yield task.name
        return
    everything = list(pending)
    running: dict[Future[object], Task] = {}
    with _started(workers, [task.run for task in everything]) as start:
        while pending or running:
            while len(running) < workers and (task := _take_ready(pending, [*pending, *running.values()])):
                running[start(everything.index(task))] = task
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                task = running.pop(future)
                future.result()
                yield task.name


@contextmanager
def _started(workers: int, runs: Sequence[Callable[[], object]]) -> Iterator[Callable[[int], Future[object]]]:
    """Yield what starts the task of a number; at the end of the block no process is left."""
    # Not forked from here, because torch's threads do not survive a fork, but from one that has only imported.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED_ONCE)
    given = SharedObjects(list(runs))
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start_worker, initargs=(used(), given, precision())
    )
    try:
        yield lambda number: pool.submit(_run, number)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_loaded: list[tuple[object, Dataset]] = []
"""What this process has loaded last, and what for."""


def load_once(job: Job, own: Mapping[str, OwnParts] = MappingProxyType({})) -> Dataset:
    """Load the records of a job, or return what this process has loaded last: its tasks share their data."""
    wanted = (job.data, job.has_late_labels, dict(own))
    kept = _loaded[:]  # another thread may load something else meanwhile
    if not kept or kept[0][0] != wanted:
        kept = [(wanted, load_records(job, own))]
        _loaded[:] = kept
    return kept[0][1]


def _take_ready(pending: list[Task], unfinished: Sequence[Task]) -> Task | None:
    """Take the first task off the list that needs no unfinished one; None if there is none."""
    names = {task.name for task in unfinished}
    places = (at for at, task in enumerate(pending) if not task.needs & names)
    return None if (at := next(places, None)) is None else pending.pop(at)


_given: list[Callable[[], object]] = []
"""What this process is given to do, if it is a worker: all tasks in their order."""


def _start_worker(modules: tuple[str, ...], given: Any, chosen: Precision) -> None:
    use(modules)
    torch.set_num_threads(1)
    compute_in(chosen)
    _given[:] = given
    end_with_parent()


def _run(number: int) -> None:
    _given[number]()
