"""`tpsl sweep` and `tpsl paper` on small data."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tpsl.experiments import paper

SMALL = ("--data", "synthetic", "--rows", 1500, "--seeds", 1, "--workers", 1)


def test_a_sweep_writes_one_row_for_each_run_and_resumes(tpsl: Any, tmp_path: Path) -> None:
    command = (
        "sweep",
        *SMALL,
        "--mechanism",
        "none",
        "--mechanism",
        "laplace",
        "--epsilon",
        1,
        "--estimator",
        "linear",
    )
    content = tpsl(*command, "--out", tmp_path, "--json").json()
    assert content["runs"] == 2
    assert [row["mechanism"] for row in content["results"]] == ["none", "laplace"]
    assert content["results"][0]["shortest_distance_auc"] == pytest.approx(1.0)
    with (tmp_path / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2
    again = tpsl(*command, "--out", tmp_path, "--json").json()
    assert again == content
    shown = tpsl(*command, "--out", tmp_path)
    assert "not private" in shown.stderr
    assert str(tmp_path / "results.csv") in shown.stdout


def test_the_paper_gives_tables_and_figures(tpsl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "EPSILONS", (1.0,))
    monkeypatch.setattr(paper, "SKIPPED_BATCHES", 2)
    content = tpsl("paper", *SMALL, "--out", tmp_path, "--json").json()
    assert [table["title"].split(":")[0] for table in content["tables"]] == [
        "Table 1 (synthetic)",
        "As tables 2 and 3 (synthetic)",
    ]
    results = content["tables"][1]["rows"]
    assert {row[1] for row in results[1:]} == {"Laplace", "Discrete", "Gaussian", "Discrete, posterior"}
    for file in content["files"]:
        assert Path(file).stat().st_size > 100
    shown = tpsl("paper", *SMALL, "--out", tmp_path)
    assert "tradeoff.svg" in shown.stdout


def test_paths_go_with_the_data_that_needs_them(tpsl: Any, tmp_path: Path) -> None:
    assert "--data criteo needs the path" in tpsl("paper", "--data", "criteo", "--out", tmp_path).error()
    assert "a path too many: train.txt" in tpsl("paper", "train.txt", "--out", tmp_path).error()
    assert "--data flights takes no path" in tpsl("sweep", "train.txt", "--out", tmp_path).error()
    options = ("--not-private", "--workers", 1, "--out", tmp_path)
    assert "missing.txt" in tpsl("sweep", "missing.txt", "--data", "criteo", *options).error()


@pytest.mark.parametrize("command", ["sweep", "paper", "frontier"])
def test_data_of_ones_own_is_not_shown_without_being_asked(tpsl: Any, tmp_path: Path, command: str) -> None:
    """These experiments contain runs without noise, or with seeded noise; public data needs no permission."""
    sentence = tpsl(command, "train.txt", "--data", "criteo", "--out", tmp_path).error()
    assert "NOT PRIVATE" in sentence
    assert "--not-private" in sentence


def test_an_audit_releases_no_more_than_is_permitted(tpsl: Any, tmp_path: Path) -> None:
    command = ("audit", "--data", "synthetic", "--rows", 200, "--epochs", 1, "--canaries", 50)
    assert "--not-private" in tpsl(*command, "--mechanism", "none").error()
    assert "--max-epsilon" in tpsl(*command, "--epsilon", 11).error()
