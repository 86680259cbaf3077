"""Whatever the umask, no other user can read what a command writes: most of it depends on true labels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.select.space import configuration
from tpsl_research import paper


@pytest.fixture(autouse=True)
def everybody_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files that take the umask as it comes can be read and written by everybody here."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = os.umask(0)
    yield
    os.umask(before)


def written(folder: Path) -> dict[str, int]:
    """The permissions of everything in a folder."""
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in sorted(folder.rglob("*"))}


def assert_private(found: dict[str, int]) -> None:
    assert found
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


def test_a_run_with_all_that_is_found_and_shown_of_it(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(small_job.read_text())
    content["training"] |= {"head": "local", "validation": 0.2, "patience": 1, "pretrain": {"method": "masked"}}
    content["model"] |= {"wide": True, "members": 2}
    small_job.write_text(yaml.safe_dump(content))
    commands: list[tuple[Any, ...]] = [
        ("train", small_job, "--out", "runs/run", "--set=local.record_transcript=true", "--set=local.log=tensorboard"),
        ("attack", "runs/run"),
        ("audit", "runs/run", "--only", "replay"),
        ("report", "runs/run", "--out", "page.html"),
        ("research", "figures", "runs/run", "--out", "drawn/here"),
    ]
    for command in commands:
        shown = tpsl(*command)
        assert shown.status == 0, shown.stderr
    found = written(tmp_path / "here")
    assert_private(found)
    endings = {Path(name).suffix for name in found}
    assert endings >= {".json", ".jsonl", ".safetensors", ".f32", ".html", ".tex", ".md", ".png", ".svg", ".pdf"}
    assert any("tfevents" in name for name in found)
    assert {"runs/run/result.json", "runs/run/label/attacks.json", "runs/run/label/NOT-PRIVATE/result.json"} <= set(
        found
    )


def test_tables_and_figures_of_many_runs(
    tpsl: Any, small_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = configuration(1e-2)
    monkeypatch.setattr("tpsl_research.frontier_cells.BASELINE_SPACE", (one,))
    monkeypatch.setattr("tpsl.select.space.RECOMMENDED_SPACE", (one,))
    monkeypatch.setattr(paper, "EPSILONS", (1.0,))
    (tmp_path / "space.yaml").write_text(yaml.safe_dump([{"training": {"epochs": 1}}]))
    small = ("--data", "synthetic", "--set=data.rows=300", "--seeds", 1, "--processes", 1)
    commands: list[tuple[Any, ...]] = [
        ("research", "paper", *small, "--out", "paper"),
        (
            "research",
            "frontier",
            *small,
            "--epsilon",
            1,
            "--head",
            "private",
            "--method",
            "network",
            "--out",
            "frontier",
        ),
        ("tune", small_job, "--space", tmp_path / "space.yaml", "--out", "tuned"),
    ]
    for command in commands:
        shown = tpsl(*command)
        assert shown.status == 0, shown.stderr
    found = written(tmp_path / "here")
    assert_private(found)
    for name in (
        *(
            "paper/synthetic/results.csv",
            "paper/synthetic/results.parquet",
            "paper/tables.md",
            "paper/tables.csv",
            "paper/tradeoff.png",
        ),
        *("frontier/frontier.csv", "frontier/frontier.svg", "tuned/tune.json"),
    ):
        assert name in found


def test_data_for_two_parties(tpsl: Any, tmp_path: Path) -> None:
    line = "\t".join(["1", *["5"] * 13, *["0a1b2c3d"] * 26])
    (tmp_path / "train.txt").write_text(f"{line}\n" * 40)
    for command in (
        ("research", "data", "synthetic", "--rows", 100),
        ("research", "data", "flights", "--rows", 100),
        ("research", "data", "criteo", tmp_path / "train.txt"),
    ):
        shown = tpsl(*command)
        assert shown.status == 0, shown.stderr
    model = ("--epochs", 1, "--set=training.batch_size=20")
    shown = tpsl("train", "criteo/job.yaml", *model, "--out", "run")
    assert shown.status == 0, shown.stderr
    found = written(tmp_path / "here")
    assert_private(found)
    assert "run/feature/encoder/encoder.json" in found
