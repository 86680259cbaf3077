"""`tpsl ui`: prints where the page is, serves it until Ctrl-C, and says in one sentence what is wrong."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.mark.parametrize(
    ("number", "status", "line"),
    [(signal.SIGINT, 0, "the page has ended"), (signal.SIGTERM, 143, "terminated; the page has ended")],
)
def test_it_serves_until_it_is_told_to_end(
    programs: Any, small_job: Path, tmp_path: Path, number: int, status: int, line: str
) -> None:
    # A run that has just begun: there is a job, and no more.
    (tmp_path / "runs" / "begun" / "label").mkdir(parents=True)
    (tmp_path / "runs" / "begun" / "job.yaml").write_text(small_job.read_text())
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "job.yaml").write_text("nonsense: 1")
    ui = programs(tmp_path, "ui", "--json")
    until = time.monotonic() + 60
    while not ui.process.stdout.read_text().endswith("\n") and time.monotonic() < until:
        assert ui.is_running(), ui.log()
        time.sleep(0.05)
    printed = json.loads(ui.process.stdout.read_text())
    assert printed["folder"] == "runs" and printed["runs"] == 1
    with urllib.request.urlopen(printed["url"] + "list", timeout=30) as answer:
        content = answer.read().decode()
    assert ">begun</a>" in content and ">1 run, 1 running.<" in content and ">2</span>" in content
    ui.signal(number)
    outcome = ui.outcome()
    assert outcome.status == status and json.loads(outcome.stdout) == printed
    assert "Traceback" not in outcome.stderr and line in outcome.stderr.splitlines()
    assert "not shown: runs/broken/job.yaml" in outcome.stderr


def test_without_a_folder_of_runs_the_current_folder_is_shown(programs: Any, small_job: Path, tmp_path: Path) -> None:
    """As in the guides: a party's folder with its job, its vault and a run."""
    (tmp_path / "bank" / "run" / "label").mkdir(parents=True)
    for folder in ("bank", "bank/run"):
        (tmp_path / folder / "job.yaml").write_text(small_job.read_text())
    ui = programs(tmp_path / "bank", "ui", "--json")
    until = time.monotonic() + 60
    while not ui.process.stdout.read_text().endswith("\n") and time.monotonic() < until:
        assert ui.is_running(), ui.log()
        time.sleep(0.05)
    printed = json.loads(ui.process.stdout.read_text())
    assert printed["folder"] == "." and printed["runs"] == 1


def test_wrong_input_is_one_sentence(tpsl: Any, tmp_path: Path) -> None:
    assert f"{tmp_path / 'absent'}: there is no such folder" in tpsl("ui", tmp_path / "absent").error()
    (tmp_path / "file").write_text(yaml.safe_dump({}))
    assert f"{tmp_path / 'file'}: there is no such folder" in tpsl("ui", tmp_path / "file").error()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = tpsl("ui", tmp_path, "--port", port).error()
    assert f"the page cannot be served on 127.0.0.1:{port} (Address already in use)" in sentence
    assert "--port" in tpsl("ui", tmp_path, "--port", 70000).error(status=2)
