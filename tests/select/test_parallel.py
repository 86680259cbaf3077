from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.models.halves import compute_in, precision
from tpsl.models.optimizer import OPTIMIZERS
from tpsl.registry import use
from tpsl.run.job import make_job
from tpsl.run.one_process import load_records
from tpsl.select import parallel
from tpsl.select.parallel import SharedRecords, Task, load_once, run_tasks

ROOT = Path(__file__).parents[2]


def test_tasks_run_in_order() -> None:
    done: list[str] = []
    assert list(run_tasks([Task(name, partial(done.append, name)) for name in "abc"], 1)) == done == ["a", "b", "c"]
    assert list(run_tasks([], 2)) == []


def _look_up(name: str) -> None:
    OPTIMIZERS.get(name)


def test_workers_have_the_parts_that_were_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register = "from tpsl.models.optimizer import OPTIMIZERS\nOPTIMIZERS.register('of my own', dict)\n"
    (tmp_path / "parts_of_my_own.py").write_text(register)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    use(["parts_of_my_own"])
    assert sorted(run_tasks([Task(name, partial(_look_up, "of my own")) for name in "ab"], 2)) == ["a", "b"]


def test_an_error_ends_the_rest() -> None:
    done: list[str] = []
    tasks = [Task("one", partial(done.append, "one")), Task("bad", partial(int, "x")), Task("three", partial(print))]
    with pytest.raises(ValueError, match="invalid literal"):
        for _ in run_tasks(tasks, 1):
            pass
    assert done == ["one"]


def test_workers_compute_as_the_process_that_starts_them(tmp_path: Path) -> None:
    compute_in("bf16")
    try:
        tasks = [Task(name, partial(_write_how, tmp_path / name)) for name in ("one", "other")]
        assert set(run_tasks(tasks, 2)) == {"one", "other"}
    finally:
        compute_in("float32")
    assert {(tmp_path / task.name).read_text() for task in tasks} == {"bf16"}


def _write_how(path: Path) -> None:
    path.write_text(precision())


def _fail(folder: Path) -> None:
    raise ValueError(f"{folder} is wrong")


def test_an_error_of_a_worker_is_that_of_the_search(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is wrong"):
        list(run_tasks([Task("bad", partial(_fail, tmp_path)), Task("good", print)], 2))


def _sleep(place: Path) -> None:
    place.write_text(str(os.getpid()))
    time.sleep(300)


STARTED = """
import sys; from functools import partial; from pathlib import Path
from tests.select.test_parallel import _sleep
from tpsl.select.parallel import Task, run_tasks
list(run_tasks([Task(name, partial(_sleep, Path(sys.argv[1], name))) for name in "ab"], 2))
"""


def test_workers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTED, str(tmp_path)], cwd=ROOT) as started:
        names = wait_for(lambda: [path for path in tmp_path.iterdir() if path.read_text()], 2)
        workers = [int(name.read_text()) for name in names]
        started.kill()
    wait_for(lambda: [pid for pid in workers if not Path(f"/proc/{pid}").exists()], 2)


def wait_for(found: Callable[[], list[Any]], count: int) -> list[Any]:
    """Return what is found when there are this many, or fail after a minute."""
    end = time.monotonic() + 60
    while len(found()) < count:
        assert time.monotonic() < end
        time.sleep(0.1)
    return found()


def _use(array: Any, small: Any, records: SharedRecords, numbers: float) -> None:
    """Raise unless all is as it was given, and then change it; another worker does the same."""
    assert isinstance(array, np.memmap) and array[:5].tolist() == [0, 1, 2, 3, 4] and small.tolist() == [0, 1, 2]
    array += 1
    sides = records._given[2]
    assert sides is not None, "the features would be loaded again"
    data, features = records.dataset, sides["feature"].features
    assert float(features.numeric.sum()) == numbers  # type: ignore[union-attr]
    assert len(data.labels) == len(data) == 200 and records.dataset is data
    array -= 1


def test_workers_map_what_they_share_and_a_change_stays_with_one() -> None:
    job = make_job({"data": {"source": "synthetic", "rows": 200}}, {}, "test")
    data, array = load_records(job), np.arange(1 << 18, dtype=np.float64)
    records, features = SharedRecords(job, {}, data), data.feature_sides["feature"].features
    check = partial(_use, array, np.arange(3), records, float(features.numeric.sum()))  # type: ignore[union-attr]
    assert sorted(run_tasks([Task(name, check) for name in "abcd"], 2)) == list("abcd")
    assert (array == np.arange(1 << 18)).all() and records.dataset is data


def test_no_true_label_is_handed_on() -> None:
    job = make_job({"data": {"source": "synthetic", "rows": 200}}, {}, "test")
    data = load_records(job)
    with pytest.raises(TypeError, match="true labels cannot be copied or pickled"):
        pickle.dumps(data)
    handed = pickle.loads(pickle.dumps(SharedRecords(job, {}, data)))
    assert handed._data is None and handed._given[2].keys() == data.feature_sides.keys()


class Overtaken(list[object]):
    """What a process has loaded last, where another thread has loaded something else right after this one."""

    def __setitem__(self, place: object, value: object) -> None:
        super().__setitem__(slice(None), [("another job", "its records")])


def test_a_search_has_its_own_records_also_when_another_thread_loads_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_loaded", Overtaken())
    job = make_job({"data": {"source": "synthetic", "rows": 60}}, {}, "test")
    assert len(load_once(job).labels) == 60
