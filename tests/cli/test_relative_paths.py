"""A path on the command line or in Python starts in the current folder, one in a job file beside it; runs keep both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tpsl as notebook
from tpsl.run.job import load_job
from tpsl.select.space import configuration


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a small click log in it."""
    folder, numbers = tmp_path / "here", np.random.default_rng(0)
    folder.mkdir()
    monkeypatch.chdir(folder)
    lines = [
        "\t".join(
            [str(label), *map(str, numbers.integers(0, 9, 13)), *(f"{c:08x}" for c in numbers.integers(0, 3, 26))]
        )
        for label in numbers.integers(0, 2, 160)
    ]
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


OPTIONS = (
    "--data",
    "criteo",
    "--set=data.path=train.txt",
    "--epochs",
    1,
    "--set=training.batch_size=32",
    "--set=model={embedding_dim: 2, bottom: [8], top: [8]}",
    "--set=local.record_transcript=true",
)


def test_a_run_on_a_relative_path_is_used_from_anywhere(
    tpsl: Any, here: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tpsl("train", *OPTIONS, "--out", "run", "--json")
    first = shown.json()
    assert f"{here / 'train.txt'}: has no times, so its order is taken for that of time" in shown.stderr
    assert tpsl("train", *OPTIONS, "--out", "run", "--json").json() == first
    assert load_job(here / "run" / "job.yaml").data.path == here / "train.txt"  # type: ignore[union-attr]
    monkeypatch.chdir(elsewhere)
    for command in (("attack", here / "run"), ("audit", here / "run", "--only", "replay"), ("report", here / "run")):
        shown = tpsl(*command)
        assert shown.status == 0, shown.stderr
    run = notebook.Run(here / "run")
    assert len(run.predict()) == len(run.data.test) == 32
    assert run.attack(progress=False)


def test_a_path_given_in_python_starts_in_the_current_folder(
    here: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = notebook.job({"source": "criteo", "path": "train.txt"}, epochs=1, batch_size=32)
    monkeypatch.chdir(elsewhere)
    run = notebook.train(job, here / "run", progress=False)
    assert len(run.predict()) == 32
    assert notebook.Run(here / "run").attack(progress=False)
    assert notebook.train(job, here / "run", progress=False).result == run.result


def test_an_option_starts_in_the_current_folder_and_a_job_file_beside_itself(
    tpsl: Any, here: Path, elsewhere: Path
) -> None:
    (elsewhere / "train.txt").write_text((here / "train.txt").read_text())
    (elsewhere / "job.yaml").write_text(yaml.safe_dump({"data": {"source": "criteo", "path": "train.txt"}}))
    for options, found in (((), elsewhere), (("--set=data.path=train.txt",), here)):
        run = here / f"run-{len(options)}"
        tpsl("train", elsewhere / "job.yaml", *options, "--epochs", 1, "--out", run, "--json").json()
        assert load_job(run / "job.yaml").data.path == found / "train.txt"  # type: ignore[union-attr]


@pytest.mark.parametrize("command", ["frontier", "paper"])
def test_experiments_take_the_file_as_documented(
    tpsl: Any, here: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    one = configuration(1e-2)
    monkeypatch.setattr("tpsl_research.frontier_cells.BASELINE_SPACE", (one,))
    monkeypatch.setattr("tpsl.select.space.RECOMMENDED_SPACE", (one,))
    monkeypatch.setattr("tpsl_research.paper.EPSILONS", (1.0,))
    small = {"frontier": ("--epsilon", 1, "--method", "laplace"), "paper": ()}[command]
    options = ("--data", "criteo=train.txt", "--set=local.not_private=true", "--seeds", 1, "--processes", 1, *small)
    shown = tpsl("research", command, *options, "--json")
    assert shown.json()
    assert "has no times, so its order is taken for that of time" in shown.stderr


def test_tuning_takes_a_job_with_a_relative_path(tpsl: Any, here: Path) -> None:
    (here / "job.yaml").write_text(yaml.safe_dump({"data": {"source": "criteo", "path": "train.txt"}}))
    (here / "space.yaml").write_text(yaml.safe_dump([{"training": {"epochs": 1, "batch_size": 32}}]))
    shown = tpsl("tune", "job.yaml", "--space", "space.yaml", "--out", "tuned", "--json")
    assert shown.json()
    assert "has no times, so its order is taken for that of time" in shown.stderr
    best = load_job(here / "tuned" / "best.yaml")
    assert best.data.path == here / "train.txt"  # type: ignore[union-attr]
