"""The list of `tpsl ui`: what it says of each run, what runs, which runs cannot be read."""

from __future__ import annotations

import html
import json
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from tpsl.report.run_list import run_list, running
from tpsl.report.run_table import summary
from tpsl.report.watching import WatchedFolder
from tpsl.report.words import bound_text
from tpsl.run.observer import ProgressFile

from .live_service import rows_in


def listed(folder: Path, party: str = "label") -> str:
    return run_list(WatchedFolder(folder, party).snapshot(), folder.name, party)


def text_of(content: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", content))


def test_a_row_has_the_numbers_of_the_table(runs: Path) -> None:
    rows = rows_in(listed(runs))
    views = {view.name: view for view in WatchedFolder(runs).snapshot().views}
    assert rows.keys() == views.keys()
    for name, row in rows.items():
        numbers, promise = summary(views[name]), views[name].promise
        area, attack = numbers["test_auc"], numbers["attack_auc"]
        assert row["ε"].split("\n")[0] == promise.total_epsilon_text
        assert row["Test AUC"].split("\n")[0] == ("–" if area is None else f"{area:.4f}")
        assert row["Attack AUC"].split("\n")[0] == ("–" if attack is None else f"{attack:.4f}")
        assert row["Bound"].split("\n")[0] == bound_text(*(numbers[f"bound{end}"] for end in ("", "_low", "_high")))


def test_keys_in_which_jobs_differ_are_found_by_a_search(runs: Path, tmp_path: Path) -> None:
    for name in ("laplace", "discrete", "seeded"):
        shutil.copytree(runs / name, tmp_path / name)
    words = {key.split("=")[0] for key in re.findall(r"(?<= )[a-z_.]+=", listed(tmp_path))}
    keys = ("mechanism", "epsilon", "estimator", "sigma", "delta", "noise_seed")
    assert words >= {f"privacy.{key}" for key in keys} and "training.epochs" in words


def test_a_run_that_goes_on_says_how_far_it_is(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "stopped", run)
    ProgressFile(run / "label").at_step(7, 30, 70)
    content = text_of(listed(tmp_path))
    area = json.loads((run / "label" / "metrics.jsonl").read_text())["test_auc"]
    assert "Running now" in content and "step 7 of 30" in content and "epoch 1 of 3" in content
    assert f"run {area:.4f}" in content  # its curve so far
    assert rows_in(listed(tmp_path))["run"]["State"].split("\n")[0] == "running"


def test_a_run_that_has_fallen_quiet_is_not_called_running(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs / "stopped", tmp_path / "run")
    ProgressFile(tmp_path / "run" / "label").at_step(7, 30, 70)
    snapshot = WatchedFolder(tmp_path).snapshot()
    assert len(running(snapshot)) == 1
    monkeypatch.setattr("tpsl.report.run_list._QUIET", timedelta(seconds=-60))  # as if a minute had passed
    assert running(snapshot) == []


def test_unreadable_runs_are_named_and_counted(runs: Path, tmp_path: Path) -> None:
    for number in range(7):
        shutil.copytree(runs / "stopped", tmp_path / f"run-{number}")
        (tmp_path / f"run-{number}" / "result.json").write_text("{")
    about = text_of(listed(tmp_path))
    assert f"Not shown: {tmp_path / 'run-0' / 'result.json'}: is damaged" in about
    assert "; and 2 more." in about and "run-4" in about and "run-5" not in about
