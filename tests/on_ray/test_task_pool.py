"""A search whose runs are tasks of a Ray cluster."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.on_ray.cluster import RayError, RayWorkers, own_errors
from tpsl.on_ray.task_pool import RayTaskPool
from tpsl.tuning.pool import Task, run_tasks

RATES = [{"training": {"feature_optimizer": {"learning_rate": rate}}} for rate in (0.001, 0.01, 0.1)]


def test_a_search_finds_the_same_on_ray(cluster: Any, tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(yaml.safe_dump(RATES))
    here = tpsl("tune", small_job, "--out", tmp_path / "here", "--space", space, "--json").json()
    there = tpsl(
        "tune", small_job, "--out", tmp_path / "there", "--space", space, "--ray", "--ray-workers", 2, "--json"
    ).json()
    assert {**there, "out": here["out"]} == here
    ledger = tpsl("vault", "ledger", here["vault"], "--json").json()
    assert [entry["kind"] for entry in ledger["entries"]].count("released") == 1
    assert {**tpsl("tune", small_job, "--out", tmp_path / "there", "--space", space, "--json").json(), "out": ""} == {
        **there,
        "out": "",
    }


def _note(path: Path, name: str) -> None:
    with path.open("a") as file:
        file.write(f"{name} {os.getpid()}\n")


def _die_once(path: Path) -> None:
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_whose_process_is_killed_is_done_again(cluster: Any, tmp_path: Path) -> None:
    notes, died = tmp_path / "notes", tmp_path / "died"
    tasks = [
        Task("after", partial(_note, notes, "after"), frozenset({"dies"})),
        Task("dies", partial(_die_once, died)),
        Task("free", partial(_note, notes, "free")),
    ]
    done = list(run_tasks(tasks, RayTaskPool(cluster, RayWorkers(2))))
    assert sorted(done) == ["after", "dies", "free"] and done.index("after") > done.index("dies")
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert sorted(name for name, _ in lines) == ["after", "free"]
    assert str(os.getpid()) not in {process for _, process in lines}


def test_an_error_is_the_one_that_was_raised_there(cluster: Any, tmp_path: Path) -> None:
    tasks = [Task("bad", partial(int, "x")), Task("after", partial(_note, tmp_path / "notes", "after"))]
    with pytest.raises(ValueError, match=r"^invalid literal for int"), own_errors():
        list(
            run_tasks(
                [tasks[0], Task(tasks[1].name, tasks[1].run, frozenset({"bad"}))], RayTaskPool(cluster, RayWorkers(2))
            )
        )
    assert not (tmp_path / "notes").exists()


def test_a_cluster_without_room_is_refused(cluster: Any) -> None:
    assert RayWorkers(cpus=2).count_in(cluster) == 2
    with pytest.raises(RayError, match=r"has 1 CPU\(s\) and 1 GPU\(s\)"):
        RayWorkers(gpus=1).count_in(cluster)


def test_options_of_ray_are_for_ray(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    assert "--ray-workers is for --ray" in tpsl("tune", small_job, "--out", tmp_path, "--ray-workers", 2).error(2)
