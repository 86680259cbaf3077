"""The file that says how far a running party is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tpsl.files import draft_of
from tpsl.run.job import make_job
from tpsl.run.loggers import run_logger
from tpsl.run.observer import PROGRESS, ProgressFile, RunProgress, Watching
from tpsl.run.one_process import train

SMALL: dict[str, Any] = {
    "data": {"source": "synthetic", "rows": 200, "numeric_fields": 3, "categorical_fields": 2, "largest_vocabulary": 8},
    "privacy": {"mechanism": "laplace", "epsilon": 2.0},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 40, "epochs": 2},
}


class Clock:
    """Time that passes on command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in ("tpsl.run.observer", "tpsl.progress"):
            monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: self.now))


def test_it_says_how_fast_the_party_is_and_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, progress = Clock(monkeypatch), ProgressFile(tmp_path)
    assert RunProgress.read(tmp_path) is None
    progress.at_step(1, 100, 50)
    assert RunProgress.read(tmp_path) == RunProgress(1, 100)
    clock.now += 0.9  # too early for another write
    progress.at_step(10, 100, 500)
    assert RunProgress.read(tmp_path) == RunProgress(1, 100)
    clock.now += 1.1
    progress.at_step(21, 100, 1050)  # 20 steps of 50 records in two seconds
    assert RunProgress.read(tmp_path) == RunProgress(21, 100, 500.0, 7.9)
    clock.now += 2
    progress.at_step(11, 100, 1100)  # back at a checkpoint: the speed is not known anew
    assert RunProgress.read(tmp_path) == RunProgress(11, 100)
    assert [path.name for path in tmp_path.iterdir()] == [PROGRESS]
    assert (tmp_path / PROGRESS).stat().st_mode & 0o077 == 0
    progress.close()
    assert list(tmp_path.iterdir()) == []


def test_who_never_ran_leaves_the_file_of_another_process(tmp_path: Path) -> None:
    ProgressFile(tmp_path).at_step(1, 9, 1)
    ProgressFile(tmp_path).close()
    assert RunProgress.read(tmp_path) == RunProgress(1, 9)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"step": "1", "steps": 2, "samples_per_second": 1, "seconds_left": 1}',
        '{"step": 1}',
        "\xff",
        "[" * 4000,
        '{"step": 1, "steps": 2, "samples_per_second": 1, "seconds_left": 1}' + " " * 5000,
    ],
)
def test_what_cannot_be_read_is_no_progress(tmp_path: Path, content: str) -> None:
    (tmp_path / PROGRESS).write_text(content, encoding="latin-1")
    assert RunProgress.read(tmp_path) is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PROGRESS)
    assert RunProgress.read(tmp_path) is None


def test_what_cannot_be_written_stops_no_training(tmp_path: Path) -> None:
    """A disk without room raises an OSError of its own where a step would be, as this one does."""
    draft_of(tmp_path / PROGRESS).mkdir()
    ProgressFile(tmp_path).at_step(1, 9, 1)
    assert RunProgress.read(tmp_path) is None


def test_a_number_that_json_cannot_hold_is_unknown(tmp_path: Path) -> None:
    content = {"step": 1, "steps": 2, "samples_per_second": float("inf"), "seconds_left": float("nan")}
    (tmp_path / PROGRESS).write_text(json.dumps(content))
    assert RunProgress.read(tmp_path) == RunProgress(1, 2)


def test_a_run_has_it_while_it_runs_and_not_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = tmp_path / "run", list[RunProgress | None]()
    with run_logger(make_job(SMALL, {}, "test"), run, "label", pytest.fail, ["none"]) as logger:

        def progress(done: int, total: int | None = None, note: str = "") -> None:
            seen.append(RunProgress.read(run / "label"))

        train(make_job(SMALL, {}, "test"), run, watching=Watching(logger, progress, lambda text: None))
    assert seen[-1] is not None and seen[-1].steps == 8 and 1 <= seen[-1].step <= 8
    assert not list(run.rglob(f"*{PROGRESS}*"))
