"""What a job will take, by arithmetic."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tpsl.planning.line import Network
from tpsl.planning.plan import Assumptions, last_run, plan, planned_job, records_of
from tpsl.training.job import Job, make_job
from tpsl.training.local import Local
from tpsl.training.one_process import train

ROWS = 50


def table_job(folder: Path) -> Job:
    features = [{"path": str(folder / "airport.csv"), "party": "airport", "numeric": ["distance"]}]
    data = {"source": "table", "features": features, "label": {"path": str(folder / "airline.csv")}}
    return make_job({"data": data}, {}, "a test")


def write_airport(folder: Path) -> None:
    (folder / "airport.csv").write_text("id,distance\n" + "".join(f"{n},{n}\n" for n in range(ROWS)))


def test_records_are_counted_in_a_file_that_is_within_reach(tmp_path: Path) -> None:
    assert records_of(make_job({"data": {"source": "synthetic", "rows": 77}}, {}, "a test"), {}) == 77
    with pytest.raises(ValueError, match="no file of the job is within reach: say with --rows"):
        records_of(table_job(tmp_path), {})
    (tmp_path / "elsewhere").mkdir()
    write_airport(tmp_path / "elsewhere")
    local = {"airport": Local(data=tmp_path / "elsewhere" / "airport.csv")}
    assert records_of(planned_job(table_job(tmp_path), local), local) == ROWS


def test_the_speed_is_that_of_the_run_that_ended_last(tmp_path: Path) -> None:
    assert last_run(tmp_path) is None
    content: dict[str, Any] = {
        "data": {"source": "synthetic", "rows": 200, "numeric_fields": 2, "categorical_fields": 1},
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"epochs": 1, "batch_size": 50, "patience": 0},
    }
    speeds = {name: train(make_job(content, {}, "a test"), tmp_path / name).samples_per_second for name in "ab"}
    for run, ended in (("a", 2e9), ("b", 1.9e9)):
        os.utime(tmp_path / run / "result.json", (ended, ended))
    assert last_run(tmp_path) == (tmp_path / "a", speeds["a"])
    assert last_run(tmp_path / "b") == (tmp_path / "b", speeds["b"])
    (tmp_path / "a" / "result.json").write_text("damaged")
    assert last_run(tmp_path) == (tmp_path / "b", speeds["b"])
    (tmp_path / "b" / "result.json").unlink()
    of_feature_party = json.loads((tmp_path / "b" / "feature" / "result.json").read_bytes())["samples_per_second"]
    assert last_run(tmp_path) == (tmp_path / "b", of_feature_party), "over a network it has no other"


def test_time_follows_from_the_speed_and_the_line() -> None:
    job = make_job(
        {
            "data": {"source": "synthetic", "rows": 10_000, "test_fraction": 0.2},
            "training": {"epochs": 2, "batch_size": 100, "validation": 0, "patience": 0},
        },
        {},
        "a test",
    )
    split, handed_over = plan(job, Assumptions(10_000, speed=1000.0))
    for each in (split, handed_over):
        assert each.step == pytest.approx(0.1)
        assert each.seconds == pytest.approx(160 * 0.1 + 2 * 2000 / 1000)
    slow = plan(job, Assumptions(10_000, 1000.0, Network(1e6, 1.0)))
    (steps,) = [each for each in slow[0].crossing if each.method == "Step"]
    crossing = (steps.bytes(to_label=True) + steps.bytes(to_label=False)) / 160
    assert slow[0].step == pytest.approx(0.1 + 1.0 + crossing / 1e6)
    assert slow[1].step == pytest.approx(0.1)
    unknown = plan(job, Assumptions(10_000))[0]
    assert unknown.seconds is None and unknown.to_label == split.to_label
