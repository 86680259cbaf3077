"""`tpsl data`: two files, a job that trains on them, and what is known about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tpsl.data.config import FlightsData, SyntheticData
from tpsl.data.dataset import load
from tpsl.data.synthetic import World
from tpsl_research.example_data import BayesOptimum

SMALL = ("--epochs", 1, "--set=training.batch_size=256", "--json")


def test_synthetic_writes_both_files_a_job_that_trains_and_the_best_possible_auc(tpsl: Any, tmp_path: Path) -> None:
    out = tmp_path / "made"
    written = tpsl("research", "data", "synthetic", "--out", out, "--rows", 600, "--set=data.seed=3", "--json").json()
    assert written["files"] == [str(out / "feature.parquet"), str(out / "label.parquet")]
    assert written["job"] == str(out / "job.yaml")
    assert written["rows"] == 600
    optimum = BayesOptimum(2)
    for chunk in World(SyntheticData(rows=600, seed=3)).chunks():
        optimum.add(chunk.probabilities)
    assert written["bayes_auc"] == optimum.facts()["bayes_auc"]
    assert pq.read_table(out / "label.parquet").column_names == ["id", "label"]
    assert "label" not in pq.read_table(out / "feature.parquet").column_names
    result = tpsl("train", out / "job.yaml", "--out", tmp_path / "run", *SMALL).json()
    assert (result["data"], result["train_records"], result["test_records"]) == ("table", 480, 120)
    assert (result["mechanism"], result["epsilon"]) == ("discrete", 1.0)


def test_the_files_can_be_moved_together(tpsl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        tpsl("research", "data", "synthetic", "--out", tmp_path / "made", "--rows", 100, "--set=data.classes=3").status
        == 0
    )
    (tmp_path / "made").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert tpsl("train", "moved/job.yaml", "--out", "run", *SMALL).json()["classes"] == 3
    # A finished run is found again from another folder, and by the job it holds itself.
    monkeypatch.chdir(tmp_path / "moved")
    again = tpsl("train", "job.yaml", "--out", "../run", *SMALL)
    assert "finished run" in again.stderr
    assert again.json()["classes"] == 3
    assert "finished run" in tpsl("train", "../run/job.yaml", "--out", "../run", "--json").stderr


def test_flights_writes_what_the_built_in_data_has(tpsl: Any, tmp_path: Path) -> None:
    out = tmp_path / "flights"
    shown = tpsl("research", "data", "flights", "--out", out, "--rows", 2000, "--set=data.task=delay5")
    assert shown.facts() == {
        "job": str(out / "job.yaml"),
        "data of airport": str(out / "airport.parquet"),
        "data of airline": str(out / "airline.parquet"),
        "rows": "2,000",
        "look at them": f"tpsl check {out / 'job.yaml'}",
        "train on them": f"tpsl train {out / 'job.yaml'}",
    }
    assert {file["path"] for file in yaml.safe_load((out / "job.yaml").read_text())["data"]["features"]} == {
        "airport.parquet"
    }
    result = tpsl("train", out / "job.yaml", "--out", tmp_path / "run", *SMALL).json()
    built_in = load(FlightsData(rows=2000, layout="natural", task="delay5"))
    assert result["classes"] == 5
    assert result["train_records"] == len(built_in.train)
    assert (tmp_path / "run" / "label" / "bottom.safetensors").exists()


def test_too_many_flights_and_a_folder_that_cannot_be_made_are_errors(tpsl: Any, tmp_path: Path) -> None:
    assert "999999999" in tpsl("research", "data", "flights", "--out", tmp_path / "a", "--rows", 999_999_999).error()
    (tmp_path / "file").touch()
    assert (
        str(tmp_path / "file")
        in tpsl("research", "data", "synthetic", "--out", tmp_path / "file", "--rows", 100).error()
    )


def criteo_lines(count: int) -> str:
    """Made-up records in the layout of Kaggle's train.txt: label, 13 integers, 26 hexadecimal categories."""
    lines = []
    for i in range(count):
        numbers = [str((i * j) % 17 - 1) if (i + j) % 5 else "" for j in range(1, 14)]
        categories = [f"{(i * 7 + j) % 11:08x}" if (i + j) % 6 else "" for j in range(26)]
        lines.append("\t".join([str((i % 4 == 0 and 1) or 0), *numbers, *categories]))
    return "\n".join(lines) + "\n"


def test_a_click_log_is_converted_and_trains(tpsl: Any, tmp_path: Path) -> None:
    log = tmp_path / "train.txt"
    log.write_text(criteo_lines(300))
    content = tpsl("research", "data", "criteo", log, "--out", tmp_path / "criteo", "--json").json()
    assert [Path(file).name for file in content["files"]] == ["feature.parquet", "label.parquet"]
    options = ("--epochs", 1, "--set=training.batch_size=64", "--json")
    converted = tpsl("train", content["job"], *options, "--out", tmp_path / "one").json()
    direct = tpsl("train", "--data", "criteo", f"--set=data.path={log}", *options, "--out", tmp_path / "two").json()
    assert converted["train_records"] == direct["train_records"] == 240
    assert converted["data"] == "criteo"


def test_a_bad_line_of_a_click_log_is_named(tpsl: Any, tmp_path: Path) -> None:
    log = tmp_path / "train.txt"
    log.write_text(criteo_lines(50) + "2" + criteo_lines(1)[1:])
    sentence = tpsl("research", "data", "criteo", log, "--out", tmp_path / "criteo").error()
    assert "row 51" in sentence
    assert "'2'" in sentence
    assert not (tmp_path / "criteo" / "label.parquet").exists()
    assert "train.csv" in tpsl("research", "data", "avazu", tmp_path / "train.csv", "--out", tmp_path / "avazu").error()
