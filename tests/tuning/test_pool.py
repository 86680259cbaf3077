from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tpsl.models.computing import Computing, compute, computing
from tpsl.tuning.pool import Task, run_tasks


def test_tasks_run_in_order_but_after_what_they_need() -> None:
    done: list[str] = []

    def task(name: str, *needs: str) -> Task:
        return Task(name, partial(done.append, name), frozenset(needs))

    tasks = [task("last", "first", "second"), task("first"), task("second"), task("free", "done before")]
    assert list(run_tasks(tasks, 1)) == done == ["first", "second", "last", "free"]


def test_an_error_ends_the_rest() -> None:
    done: list[str] = []
    tasks = [Task("one", partial(done.append, "one")), Task("bad", partial(int, "x")), Task("three", partial(print))]
    with pytest.raises(ValueError, match="invalid literal"):
        for _ in run_tasks(tasks, 1):
            pass
    assert done == ["one"]


def test_workers_compute_as_the_process_that_starts_them(tmp_path: Path) -> None:
    compute(Computing("bf16", compiled=True))
    try:
        tasks = [Task(name, partial(_write_how, tmp_path / name)) for name in ("one", "other")]
        assert set(run_tasks(tasks, 2)) == {"one", "other"}
    finally:
        compute(Computing())
    assert {(tmp_path / task.name).read_text() for task in tasks} == {repr(Computing("bf16", compiled=True))}


def _write_how(path: Path) -> None:
    path.write_text(repr(computing()))
