"""`tpsl train --learner lightgbm`: trees on handed-over labels, from the vault to scores of new records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tpsl.attacks.auc_prediction import predicted_auc
from tpsl.mechanisms import randomized_response
from tpsl.report.watching import WatchedFolder


@pytest.fixture
def office(tmp_path: Path, tpsl: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of two parties, a job, and labels that were handed over."""
    monkeypatch.chdir(tmp_path)
    tpsl("research", "data", "synthetic", "--rows", 2000, "--out", tmp_path, "--json").json()
    content = yaml.safe_load((tmp_path / "job.yaml").read_text())
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**content, "privacy": {"epsilon": 3.0}}))
    tpsl("vault", "add", "--new", "vault", "label.parquet", "--json").json()
    tpsl("vault", "release", "vault", "--epsilon", 3, "--out", "given", "--json").json()
    return tmp_path


LEARNING = ("train", "job.yaml", "--labels", "given", "--out", "run", "--learner", "lightgbm")


def test_trees_go_from_labels_to_scores(tpsl: Any, office: Path) -> None:
    learned = tpsl(*LEARNING, "--json").json()
    assert (learned["epsilon"], learned["records"], learned["held_out"]) == (3.0, 1600, 160)
    assert 0 < learned["validation_loss"] < 0.7
    assert 800 < learned["effective_labels"] < 1300  # of 1,600 at ε = 3 and a quarter positive
    scored = tpsl("predict", "run", "--records", "feature=feature.parquet", "--out", "scores.parquet", "--json").json()
    assert scored["records"] == 2000
    found = dict(zip(*pq.read_table("scores.parquet").to_pydict().values(), strict=True))
    tested = dict(zip(*pq.read_table("run/test_scores.parquet").to_pydict().values(), strict=True))
    assert len(tested) == 400 and all(found[one] == score for one, score in tested.items())
    again = tpsl(*LEARNING)
    assert "run is a finished run; nothing to do" in again.stderr
    assert again.facts()["learner"] == f"LightGBM: {learned['rounds']} rounds of trees" and "ε = 3" in again.stdout
    assert "do not rely on it" not in again.stdout


def test_the_page_of_a_learner_is_its_partys(tpsl: Any, office: Path, browser: Any) -> None:
    tpsl(*LEARNING, "--json").json()
    assert "a feature party's page is made with --for feature" in tpsl("report", "run").error()
    shown = tpsl("report", "run", "--for", "feature", "--out", "page.html", "--json").json()["runs"][0]
    best = predicted_auc(randomized_response(3.0)).best_score
    assert (shown["state"], shown["predicted_attack"], shown["predicted_auc"]) == ("finished", "likelihood", best)
    browser.open(office / "page.html")
    text = browser.run("return document.body.innerText")
    assert browser.console() == []
    for part in (
        "ε = 3",
        "LightGBM: ",
        "log loss 0.",
        "clean labels",
        "1,600",
        "it has fitted it alone",
        f"{best:.4f}",
    ):
        assert part in text
    assert "unfinished" not in text and "both halves" not in text
    (watched,) = WatchedFolder(office, "feature").snapshot().views
    assert watched.learned and watched.learned["learner"].startswith("LightGBM: ")


def test_what_noise_hides_is_said(tpsl: Any, office: Path) -> None:
    tpsl("vault", "add", "--new", "other", "label.parquet", "--json").json()
    tpsl("vault", "release", "other", "--epsilon", 0.05, "--set=local.compose=true", "--out", "noise", "--json").json()
    learning = ("train", "job.yaml", "--epsilon", 0.05, "--labels", "noise", "--learner", "lightgbm", "--out", "run")
    shown = tpsl(*learning)
    assert re.search(r"about [01] clean labels; the hold-out cannot tell .*: do not rely on it", shown.facts()["worth"])


def test_trees_and_a_network_need_folders_apart(tpsl: Any, office: Path) -> None:
    tpsl(*LEARNING, "--json").json()
    assert "holds the model of a learner, not a network; choose" in tpsl(*LEARNING[:-1], "network").error()
    assert (
        "not a network; there is no half to export" in tpsl("export", "run", "--party", "feature", "--out", "x").error()
    )
    assert "not a network; it has read the noisy labels" in tpsl("attack", "run").error()
    (office / "run" / "label").mkdir()
    assert "holds a run that trains a network" in tpsl(*LEARNING).error()
