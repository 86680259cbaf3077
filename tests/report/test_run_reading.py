"""The view of a run for a party, from the folder that is there."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tpsl.report.run_reading import read_feature_run, read_run, read_view


def test_each_party_gets_its_own_view(runs: Path) -> None:
    assert read_view(runs / "laplace", "label") == read_run(runs / "laplace")
    assert read_view(runs / "laplace", "feature") == read_feature_run(runs / "laplace", "feature")
    with pytest.raises(ValueError, match=r"'nobody' is not a feature party of the job; they are feature$"):
        read_view(runs / "laplace", "nobody")


def test_feature_stands_for_the_one_feature_party_that_there_is(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("data: {source: own, parties: [airport, weather]}")
    with pytest.raises(ValueError, match=r"which feature party\? Name it with --for: airport, weather$"):
        read_view(tmp_path, "feature")
    (tmp_path / "weather").mkdir()
    assert read_view(tmp_path, "feature").party == "weather"


def test_no_file_of_a_run_is_waited_for(copied: Callable[[str], Path], tmp_path: Path) -> None:
    """A pipe in its place gives a view without it, or an error in one sentence."""
    run = copied("laplace")
    told = []

    def give_up(*_: object) -> None:
        raise AssertionError(f"{file} is waited for")

    before = signal.signal(signal.SIGALRM, give_up)
    try:
        for file in [path for path in run.rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl", ".yaml")]:
            file.rename(tmp_path / "kept")
            os.mkfifo(file)
            signal.alarm(20)
            for party in ("label", "feature"):
                try:
                    read_view(run, party)
                except ValueError as error:
                    assert "\n" not in str(error)
                    told.append(file.name)
            signal.alarm(0)
            (tmp_path / "kept").rename(file)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert {"job.yaml", "result.json", "metrics.jsonl", "ledger.json", "attacks.json", "audit.json"} <= set(told)
