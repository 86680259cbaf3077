"""The list that the run browser is sent: what the jobs share, what each has, what was spent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from tpsl.report.run_list import run_list
from tpsl.report.run_table import summary
from tpsl.report.watching import WatchedFolder
from tpsl.training.job import dotted
from tpsl.training.observer import ProgressFile
from tpsl.training.run_folder import RunFolder


def listed(folder: Path, party: str = "label") -> dict[str, Any]:
    data = run_list(WatchedFolder(folder, party).snapshot(), folder.name, party)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    return data


def test_what_jobs_share_is_sent_once(runs: Path, tmp_path: Path) -> None:
    for name in ("laplace", "discrete", "seeded"):
        shutil.copytree(runs / name, tmp_path / name)
    data = listed(tmp_path)
    for row in data["runs"]:
        job = dotted(RunFolder(tmp_path / row["name"]).job().agreed())
        assert {**data["job"], **row["job"]} == job and not data["job"].keys() & row["job"].keys()
    assert {key for row in data["runs"] for key in row["job"]} == {
        "privacy.mechanism",
        "privacy.epsilon",
        "privacy.estimator",
        "privacy.sigma",
        "privacy.delta",
        "privacy.noise_seed",
    }


def test_a_row_has_the_numbers_of_the_table_and_nothing_large(runs: Path) -> None:
    views = {view["name"]: view for view in WatchedFolder(runs).snapshot().views}
    for row in listed(runs)["runs"]:
        numbers = summary(views[row["name"]])
        assert all(row.get(name) == value for name, value in numbers.items())
        assert not {"curves", "ledger", "attacks", "sightings"} & row.keys()
        assert ("curve" in row) == (row["state"] != "finished" and bool(views[row["name"]]["curves"]))


def test_a_run_that_goes_on_says_how_far_it_is(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "stopped", run)
    (row,) = listed(tmp_path)["runs"]
    assert "steps" not in row and row["curve_of"] == "test_auc" and row["may_stop_early"] is False
    entry = json.loads((run / "label" / "metrics.jsonl").read_text())
    assert row["curve"] == [[1, *(entry[name] for name in ("test_auc", "test_auc_low", "test_auc_high"))]]
    ProgressFile(run / "label").at_step(7, 30, 70)
    job = yaml.safe_load((run / "job.yaml").read_text())
    job["training"] |= {"patience": 2, "validation": 0.1}
    (run / "job.yaml").write_text(yaml.safe_dump(job))
    (row,) = listed(tmp_path)["runs"]
    assert (row["step"], row["steps"], row["may_stop_early"]) == (7, 30, True)
    assert "seconds_left" not in row
    # A feature party's own file is all that it is told by.
    (row,) = listed(tmp_path, "feature")["runs"]
    assert "steps" not in row and "curve" not in row


def test_unreadable_runs_are_named_and_counted(runs: Path, tmp_path: Path) -> None:
    for number in range(7):
        shutil.copytree(runs / "stopped", tmp_path / f"run-{number}")
        (tmp_path / f"run-{number}" / "result.json").write_text("{")
    about = listed(tmp_path)["about"]
    assert about.startswith(f"Not shown: {tmp_path / 'run-0' / 'result.json'}: is damaged")
    assert about.endswith("; and 2 more.") and "run-4" in about and "run-5" not in about
