from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from tpsl.models.computing import compute_in, precision
from tpsl.models.optimizer import OPTIMIZERS
from tpsl.registry import use
from tpsl.select import pool
from tpsl.select.pool import Task, load_once, run_tasks
from tpsl.training.job import make_job


def test_tasks_run_in_order_but_after_what_they_need() -> None:
    done: list[str] = []

    def task(name: str, *needs: str) -> Task:
        return Task(name, partial(done.append, name), frozenset(needs))

    tasks = [task("last", "first", "second"), task("first"), task("second"), task("free", "done before")]
    assert list(run_tasks(tasks, 1)) == done == ["first", "second", "last", "free"]


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


class Overtaken(list[object]):
    """What a process has loaded last, where another thread has loaded something else right after this one."""

    def __setitem__(self, place: object, value: object) -> None:
        super().__setitem__(slice(None), [("another job", "its records")])


def test_a_search_has_its_own_records_also_when_another_thread_loads_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_loaded", Overtaken())
    job = make_job({"data": {"source": "synthetic", "rows": 60}}, {}, "test")
    assert len(load_once(job).labels) == 60
