"""`tpsl train --learner`: trees and others on handed-over labels, from the vault to scores of new records."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tpsl.attacks.auc_prediction import predicted_auc
from tpsl.mechanisms import randomized_response
from tpsl.report.watching import WatchedFolder
from tpsl.select.space import configuration


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


@pytest.mark.parametrize("learner", ["lightgbm", "logistic"])
def test_a_learner_goes_from_labels_to_scores(tpsl: Any, office: Path, learner: str) -> None:
    learning = ("train", "job.yaml", "--labels", "given", "--learner", learner, "--out", "run")
    learned = tpsl(*learning, "--json").json()
    assert (learned["learner"], learned["epsilon"], learned["records"], learned["held_out"]) == (
        learner,
        3.0,
        1600,
        160,
    )
    assert 0 < learned["validation_loss"] < 0.7
    assert 800 < learned["effective_labels"] < 1300  # of 1,600 at ε = 3 and a quarter positive
    scored = tpsl("predict", "run", "--records", "feature=feature.parquet", "--out", "scores.parquet", "--json").json()
    assert scored["records"] == 2000
    found = dict(zip(*pq.read_table("scores.parquet").to_pydict().values(), strict=True))
    tested = dict(zip(*pq.read_table("run/test_scores.parquet").to_pydict().values(), strict=True))
    assert len(tested) == 400 and all(found[one] == score for one, score in tested.items())
    again = tpsl(*learning)
    assert "run is a finished run; nothing to do" in again.stderr
    assert f"learner            {learner}: " in again.stdout and "ε = 3" in again.stdout
    assert "do not rely on it" not in again.stdout


def test_the_page_of_a_learner_is_its_partys(tpsl: Any, office: Path, browser: Any) -> None:
    tpsl("train", "job.yaml", "--labels", "given", "--learner", "logistic", "--out", "run", "--json").json()
    assert "a feature party's page is made with --for feature" in tpsl("report", "run").error()
    shown = tpsl("report", "run", "--for", "feature", "--out", "page.html", "--json").json()["runs"][0]
    best = predicted_auc(randomized_response(3.0)).best_score
    assert (shown["state"], shown["predicted_attack"], shown["predicted_auc"]) == ("finished", "likelihood", best)
    browser.open(office / "page.html")
    text = browser.run("return document.body.innerText")
    assert browser.console() == []
    for part in (
        "ε = 3",
        "logistic: ",
        "log loss 0.",
        "clean labels",
        "1,600",
        "it has fitted it alone",
        f"{best:.4f}",
    ):
        assert part in text
    assert "unfinished" not in text and "both halves" not in text
    (watched,) = WatchedFolder(office, "feature").snapshot().views
    assert watched["learned"]["learner"].startswith("logistic: ")


def test_auto_is_an_ensemble_of_networks_and_learners_that_predicts(
    tpsl: Any, office: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpsl.select.search.default_space", lambda *_: [configuration(1e-2), configuration(3e-3)])
    learning = ("train", "job.yaml", "--labels", "given", "--epochs", 1, "--learner", "auto", "--out", "run")
    learned = tpsl(*learning, "--json").json()
    assert learned["learner"] == "auto" and 0 < learned["networks"] < 1
    weights = f"{learned['networks']:.2f} networks, {1 - learned['networks']:.2f} ensemble"
    assert learned["setting"].startswith(f"{weights} (") and "logistic" in learned["setting"]
    tpsl("predict", "run", "--records", "feature=feature.parquet", "--out", "scores.parquet", "--json").json()
    found = dict(zip(*pq.read_table("scores.parquet").to_pydict().values(), strict=True))
    tested = dict(zip(*pq.read_table("run/test_scores.parquet").to_pydict().values(), strict=True))
    assert len(tested) == 400 and all(found[one] == pytest.approx(score, abs=1e-6) for one, score in tested.items())
    searched = json.loads((office / "run/feature/networks/tune.json").read_text())
    assert len(searched["candidates"]) == 2, "one epoch of two configurations"
    alone = ("predict", "run/feature/networks/with-judges", "--records", "feature=feature.parquet")
    assert tpsl(*alone, "--out", "n.parquet", "--json").json()["records"] == 2000, "they are a model of their own, too"
    networks = dict(zip(*pq.read_table("n.parquet").to_pydict().values(), strict=True))
    rest = {one: (score - learned["networks"] * networks[one]) for one, score in tested.items()}
    assert all(0 < part < 1 - learned["networks"] for part in rest.values()), "what is left is the learners' share"
    assert "run is a finished run; nothing to do" in tpsl(*learning).stderr
    assert "holds a model of auto, not of ensemble" in tpsl(*learning[:-3], "ensemble", "--out", "run").error()


def test_what_noise_hides_is_said(tpsl: Any, office: Path) -> None:
    tpsl("vault", "add", "--new", "other", "label.parquet", "--json").json()
    tpsl("vault", "release", "other", "--epsilon", 0.05, "--set=local.compose=true", "--out", "noise", "--json").json()
    learning = ("train", "job.yaml", "--epsilon", 0.05, "--labels", "noise", "--learner", "lightgbm", "--out", "run")
    shown = tpsl(*learning)
    assert re.search(r"about [01] clean labels; the hold-out cannot tell .*: do not rely on it", shown.facts()["worth"])


def test_another_learner_and_a_network_need_another_folder(tpsl: Any, office: Path) -> None:
    tpsl("train", "job.yaml", "--labels", "given", "--learner", "logistic", "--out", "run", "--json").json()
    learning = ("train", "job.yaml", "--labels", "given", "--out", "run", "--learner")
    assert "holds a model of logistic, not of lightgbm" in tpsl(*learning, "lightgbm").error()
    assert "holds the model of a learner, not a network; choose" in tpsl(*learning, "network").error()
    assert (
        "not a network; there is no half to export" in tpsl("export", "run", "--party", "feature", "--out", "x").error()
    )
    assert "not a network; it has read the noisy labels" in tpsl("attack", "run").error()
    (office / "run" / "label").mkdir()
    assert "holds a run that trains a network" in tpsl(*learning, "logistic").error()
    refused = tpsl(*learning, "forest").error()
    assert "unknown learner 'forest'; known are lightgbm" in refused
    assert refused.rstrip().endswith("ensemble, network, tuned, auto")
