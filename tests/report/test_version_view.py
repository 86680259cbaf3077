"""Versions of a model: runs that start from one another, in a table of the page and of the command."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tpsl.report.page import write_page
from tpsl.report.run_reading import read_feature_run, read_run
from tpsl.report.run_view import RunView
from tpsl.report.version_view import version_rows, version_text
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import train, train_together
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import VaultChoice
from tpsl.run.warm_start import StartingPoint
from tpsl.vault import NO_LIMITS

TABLE = """
const rows = [...document.querySelectorAll("#versions tr")];
return [!rows.length, rows.map(row => [...row.children].map(cell => cell.textContent))];
"""


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, each of which starts from the one before, and one that is alone."""
    folder = tmp_path_factory.mktemp("runs")
    choice = VaultChoice(folder / "vault", policy=replace(NO_LIMITS, compose=True))
    for name, epsilon, earlier in (("first", 2.0, ""), ("second", 0.5, "first"), ("third", 0.5, "second")):
        start = StartingPoint(folder / earlier) if earlier else None
        train_together(RunSetup(job(epsilon), RunFolder(folder / name), start=start), choice)
    train(job(1.0), folder / "alone")
    return folder


def job(epsilon: float) -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 300, "numeric_fields": 3, "categorical_fields": 0},
        "privacy": {"mechanism": "discrete", "epsilon": epsilon},
        "model": {"embedding_dim": 4, "bottom": [8], "top": [4]},
        "training": {"batch_size": 80, "epochs": 1, "validation": 0.2},
    }
    return make_job(content, {}, "test")


def views(folder: Path, *names: str) -> list[RunView]:
    return [read_run(folder / name) for name in names]


def test_runs_that_start_from_one_another_are_side_by_side(lineage: Path) -> None:
    shown = views(lineage, "alone", "first", "second", "third")
    rows = version_rows(shown)
    assert [(row["run"], row["starts_from"]) for row in rows] == [
        ("first", "–"),
        ("second", "first"),
        ("third", "second"),
    ]
    assert [row["epsilon_text"] for row in rows] == ["2", "0.5", "0.5"]
    assert {row["total_epsilon_text"] for row in rows} == {"2.5"}
    versions = [RunFolder(lineage / row["run"]).version("feature") for row in rows]
    assert [row["version"] for row in rows] == [version[:12] for version in versions]
    assert len(set(versions)) == 3
    for row in rows:
        result = RunFolder(lineage / row["run"]).result()
        assert result is not None
        assert row["test_auc"] == result.test_auc
        assert row["train_records"] == result.train_records == 240
        noisy = row["validation_auc"]
        assert noisy is None if math.isnan(result.validation_auc) else noisy == result.validation_auc


def test_a_run_whose_origin_is_not_shown_names_it(lineage: Path) -> None:
    (row,) = version_rows(views(lineage, "third"))
    assert row["starts_from"] == f"second, {RunFolder(lineage / 'second').version('feature')[:12]}"
    assert version_rows(views(lineage, "alone")) == []


def test_versions_of_several_halves_are_told_by_party() -> None:
    assert version_text({"airport": "a" * 64, "weather": "b" * 64}) == f"airport {'a' * 12}, weather {'b' * 12}"


def test_a_feature_party_finds_nothing_there_that_depends_on_labels(lineage: Path, tmp_path: Path) -> None:
    shown = [read_feature_run(lineage / name, "feature") for name in ("first", "second")]
    rows = version_rows(shown)
    assert [row["starts_from"] for row in rows] == ["–", "first"]
    assert all(row["test_auc"] is None and row["validation_auc"] is None for row in rows)
    assert shown[1]["origin"] is not None and shown[1]["origin"]["total_epsilon_text"] is None
    # The label party's folder has no part in it.
    shutil.copytree(lineage / "second", tmp_path / "second")
    shutil.rmtree(tmp_path / "second" / "label")
    assert read_feature_run(tmp_path / "second", "feature")["origin"] == shown[1]["origin"]


def test_the_page_shows_them(lineage: Path, tmp_path: Path, browser: Any) -> None:
    write_page(tmp_path / "page.html", views(lineage, "alone", "first", "second"), title="Versions")
    browser.open(tmp_path / "page.html")
    hidden, (head, *rows) = browser.run(TABLE)
    assert not hidden
    assert head[:3] == ["Run", "Version", "Starts from"]
    assert [row[:3] for row in rows] == [
        [name, RunFolder(lineage / name).version("feature")[:12], earlier]
        for name, earlier in (("first", "–"), ("second", "first"))
    ]
    assert [row[4:7] for row in rows] == [["240", "2", "2.5"], ["240", "0.5", "2.5"]]
    assert browser.console() == []
    browser.run("document.querySelectorAll('#glance [data-pick]')[2].click()")
    card = browser.run("return document.querySelector('article:not([hidden]) .card').textContent")
    assert "Starts fromfirst, whose 240 records had spent ε = 2 in all" in card


def test_a_page_without_versions_has_no_such_section(lineage: Path, tmp_path: Path, browser: Any) -> None:
    write_page(tmp_path / "page.html", views(lineage, "alone"), title="One")
    browser.open(tmp_path / "page.html")
    assert browser.run(TABLE)[0]
