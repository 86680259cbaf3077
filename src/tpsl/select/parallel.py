"""Tasks on several cores: in this process, or in processes of joblib, which map the arrays that they are given."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

from tpsl.data.dataset import Dataset, load_label_party
from tpsl.data.features import Features
from tpsl.data.sides import FeatureSide, LabelSide
from tpsl.models.halves import compute_in, precision
from tpsl.models.model_config import Precision
from tpsl.net.messages import LABEL_PARTY
from tpsl.registry import use, used
from tpsl.run.job import Job
from tpsl.run.one_process import load_records
from tpsl.run.own_parts import OwnParts

_LOOK_FOR_PARENT = 1.0  # seconds


@dataclass(frozen=True)
class Task:
    """Something to do, and what progress calls it; what it finds out it leaves in files."""

    name: str
    run: Callable[[], object]
    """A function that another process can import: a `functools.partial` of one at the top of a module."""


def run_tasks(tasks: Sequence[Task], workers: int) -> Iterator[str]:
    """Run all tasks; yield the name of each when it is done.

    One worker is this process; several are processes of this machine with one thread each, which end with this one. An
    error ends the rest.
    """
    if workers == 1 or not tasks:
        for task in tasks:
            task.run()
            yield task.name
        return
    try:
        parallel = Parallel(workers, backend="loky", return_as="generator_unordered", batch_size=1, mmap_mode="c")
        yield from parallel(delayed(_run_in_worker)(task, used(), precision(), os.getpid()) for task in tasks)
    finally:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _run_in_worker(task: Task, modules: tuple[str, ...], chosen: Precision, parent: int) -> str:
    if not _watching:
        _watching.append(threading.Thread(target=_end_with, args=(parent,), daemon=True))
        _watching[0].start()
    use(modules)
    torch.set_num_threads(1)
    compute_in(chosen)
    task.run()
    return task.name


_watching: list[threading.Thread] = []


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_FOR_PARENT)
    os._exit(1)


class SharedRecords:
    """Records for tasks: worker processes map the encoded features that this process has loaded.

    True labels are not handed on: each worker loads the label party's side for itself. Inputs that a party brings, and
    features too large for memory, each worker loads, too.
    """

    def __init__(self, job: Job, own: Mapping[str, OwnParts], data: Dataset) -> None:
        sides = data.feature_sides if all(map(_is_in_memory, data.feature_sides.values())) else None
        self._given, self._data = (job, own, sides), data

    @property
    def dataset(self) -> Dataset:
        """The records of all parties."""
        return load_once(*self._given) if self._data is None else self._data

    def __getstate__(self) -> dict[str, Any]:
        return {"_given": self._given, "_data": None}


_loaded: list[tuple[object, Dataset]] = []
"""What this process has loaded last, and what for."""


def load_once(
    job: Job, own: Mapping[str, OwnParts] = MappingProxyType({}), sides: dict[str, FeatureSide] | None = None
) -> Dataset:
    """Load the records of a job, or return what this process has loaded last: its tasks share their data.

    `sides` are those of the feature parties, where they are loaded already.
    """
    wanted = (job.data, dict(own))
    kept = _loaded[:]  # another thread may load something else meanwhile
    if not kept or kept[0][0] != wanted:
        kept = [(wanted, load_records(job, own) if sides is None else Dataset(sides, _label_side(job, own)))]
        _loaded[:] = kept
    return kept[0][1]


def _label_side(job: Job, own: Mapping[str, OwnParts]) -> LabelSide:
    source = own.get(LABEL_PARTY, OwnParts()).source(LABEL_PARTY)
    return load_label_party(job.data, source=source)


def _is_in_memory(side: FeatureSide) -> bool:
    return isinstance(side.features, Features) and not side.features.is_mapped
