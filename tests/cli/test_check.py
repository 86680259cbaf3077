"""`tpsl check` and `tpsl plan`: what is known of a job before anything is released."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml


def test_check_says_what_is_there_and_what_is_strange(tpsl: Any, tmp_path: Path) -> None:
    assert tpsl("research", "data", "synthetic", "--out", tmp_path, "--rows", 600).status == 0
    sound = tpsl("check", tmp_path / "job.yaml")
    assert sound.status == 0
    assert "feature: 600 records" in sound.stdout and "labels: 0: " in sound.stdout
    assert "what is printed stays with the label party" in sound.stderr
    assert "with training.exchange: labels these cross, noisy, and no embedding" in sound.stderr
    split = tpsl("check", tmp_path / "job.yaml", "--set=training.head=local")
    assert split.status == 0 and "training.exchange" not in split.stderr
    (told,) = re.findall(
        r"discrete \(ε = 1\): the noisy labels of the training records are worth (\d+) clean ones", sound.stdout
    )
    found = tpsl("check", tmp_path / "job.yaml", "--json").json()
    positive = found["classes"]["1"] / 600
    spread, noise = positive * (1 - positive), 1 / (math.exp(0.5) - math.exp(-0.5)) ** 2
    assert found["effective_labels"] == int(told) == pytest.approx(480 * spread / (spread + noise), abs=2)
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    job["data"]["classes"] = 3
    file = job["data"]["features"][0]
    file["id"], file["categorical"][0] = file["categorical"][0], "id"
    (tmp_path / "strange.yaml").write_text(yaml.safe_dump(job))
    strange = tpsl("check", tmp_path / "strange.yaml", "--json")
    assert strange.status == 1
    found = json.loads(strange.stdout)
    assert not found["passed"]
    assert any("rows repeat an id" in finding["text"] for finding in found["findings"])


def test_check_of_what_parties_bring_themselves(tpsl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brought.py").write_text(
        "class Source:\n"
        "    ids, labels = list(range(40)), [0, 1] * 20\n"
        "    def __getitem__(self, row):\n"
        "        return [float(row)]\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("data: {source: own, parties: [left]}\n")
    for party in ("left", "label"):
        (tmp_path / f"{party}.yaml").write_text(f"party: {party}\ninputs: brought:Source\n")
    found = tpsl("check", "job.yaml", "--local", "left.yaml", "--local", "label.yaml", "--json").json()
    assert found["passed"] and found["classes"] == {"0": 20, "1": 20}
    (tmp_path / "label.yaml").unlink()
    alone = tpsl("check", "job.yaml", "--local", "left.yaml")
    assert "label: its data is not here" in alone.stdout


def test_check_says_where_it_has_looked_for_data_that_is_not_here(tpsl: Any, tmp_path: Path) -> None:
    (tmp_path / "days" / "monday").mkdir(parents=True)
    (tmp_path / "label.csv").write_text("id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    features = "features: [{path: days/mon*, numeric: [size]}]"
    (tmp_path / "job.yaml").write_text(f"data: {{source: table, {features}, label: {{path: label.csv}}}}\n")
    told = " ".join(tpsl("check", tmp_path / "job.yaml").stdout.split())
    assert f"feature: its data is not here, and was not checked ({tmp_path}/days/mon*: there is no such file)" in told


def test_traffic_is_predicted_split_and_handed_over(tpsl: Any, small_job: Path) -> None:
    split, handed_over = tpsl("plan", small_job, "--rows", "2000", "--json").json()["predictions"]
    assert (split["exchange"], handed_over["exchange"]) == ("gradients", "labels")
    for prediction in (split, handed_over):
        assert prediction["rows"] == 2000 and prediction["steps"] == 32
    assert split["bytes_to_label"] > 2 * handed_over["bytes_to_label"]
    assert "2,000" in tpsl("plan", small_job, "--rows", "2000").stdout


def test_time_is_predicted_by_the_speed_of_a_run(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    speed = tpsl("train", small_job, "--out", run, "--json").json()["samples_per_second"]
    told = tpsl("plan", small_job, "--rows", 2000, "--run", run, "--json").json()
    assert told["samples_per_second"] == speed
    for prediction in told["predictions"]:
        records = prediction["train"] + prediction["test"]
        assert prediction["seconds"] == pytest.approx(prediction["epochs"] * records / speed)
    assert tpsl("plan", small_job, "--rows", 2000, "--json").json()["predictions"][0]["seconds"] is None
    missing = tpsl("plan", small_job, "--rows", 2000, "--run", tmp_path / "none", "--json")
    assert (missing.status, json.loads(missing.stdout)["error"]["code"]) == (1, "run")
