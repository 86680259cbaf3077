"""`tpsl research …` on small data."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import yaml

from tpsl.select.space import configuration
from tpsl_research import paper
from tpsl_research.frontier_cells import HANDED_OVER, JOINED_LOGISTIC, METHODS, NETWORK, TREES

SMALL = ("--data", "synthetic", "--set=data.rows=1500", "--seeds", 1, "--processes", 1)


def test_the_paper_gives_tables_and_figures(tpsl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "EPSILONS", (1.0,))
    monkeypatch.setattr(paper, "SKIPPED_BATCHES", 2)
    content = tpsl("research", "paper", *SMALL, "--out", tmp_path, "--json").json()
    assert [table["title"].split(":")[0] for table in content["tables"]] == [
        "Table 1 (synthetic)",
        "As tables 2 and 3 (synthetic)",
    ]
    results = content["tables"][1]["rows"]
    assert {row[1] for row in results[1:]} == {"Laplace", "Discrete", "Gaussian", "Discrete, posterior"}
    for file in content["files"]:
        assert Path(file).stat().st_size > 100
    shown = tpsl("research", "paper", *SMALL, "--out", tmp_path)
    assert "tradeoff.svg" in shown.stdout


def test_paths_go_with_the_data_that_needs_them(tpsl: Any, tmp_path: Path) -> None:
    out = ("--out", tmp_path)
    assert "data.path: is needed, and not given" in tpsl("research", "paper", "--data", "criteo", *out).error()
    assert "data.path: there is no such key" in tpsl("research", "paper", "--data", "flights=train.txt", *out).error()
    assert "(train.txt)" in tpsl("research", "paper", "train.txt", *out).error(status=2)
    options = ("--set=local.not_private=true", "--processes", 1, "--out", tmp_path)
    assert "missing.txt" in tpsl("research", "paper", "--data", "criteo=missing.txt", *options).error()


@pytest.mark.parametrize("command", ["paper", "frontier"])
def test_data_of_ones_own_is_not_shown_without_being_asked(tpsl: Any, tmp_path: Path, command: str) -> None:
    """These experiments contain runs without noise, or with seeded noise; public data needs no permission."""
    sentence = tpsl("research", command, "--data", "criteo=train.txt", "--out", tmp_path).error()
    assert "NOT PRIVATE" in sentence
    assert "local.not_private=true" in sentence


def test_wrong_options_of_the_frontier_are_named(tpsl: Any, tmp_path: Path) -> None:
    frontier = ("research", "frontier", "--out", tmp_path, "--data", "synthetic", "--set=data.rows=500")
    assert "--epsilon" in tpsl(*frontier, "--epsilon", "1;2").error(status=2)
    wrong_head = tpsl(*frontier, "--head", "private", "--head", "public").error()
    assert "--head: 'public' is none of private, local" in wrong_head
    described = re.sub(r"[\s│]", "", tpsl("research", "frontier", "--help").stdout)  # names are wrapped, too
    *others, last = METHODS
    assert f"{','.join(others)}or{last}" in described
    wrong_method = tpsl(*frontier, "--method", "laplace", "--method", "magic").error()
    assert "--method: 'magic' is none of laplace, " in wrong_method
    assert "epsilon" in tpsl(*frontier, "--epsilon", "-1").error()
    assert (
        "data.path: is needed, and not given"
        in tpsl("research", "frontier", "--data", "criteo", "--out", tmp_path).error()
    )
    assert not list(tmp_path.glob("cells/*.json"))


def test_the_frontier_gives_tables_and_a_figure_and_resumes(
    tpsl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = configuration(1e-2)
    monkeypatch.setattr("tpsl_research.frontier_cells.BASELINE_SPACE", (one,))
    monkeypatch.setattr("tpsl.select.space.RECOMMENDED_SPACE", (one,))
    options = ("--data", "synthetic", "--set=data.rows=600", "--seeds", 1, "--epsilon", 1, "--head", "private")
    methods = [part for name in ("network", "laplace", "discrete", "gaussian") for part in ("--method", name)]
    command = (
        "research",
        "frontier",
        *options,
        *methods,
        "--set=local.threads=1",
        "--processes",
        1,
        "--out",
        tmp_path,
    )
    content = tpsl(*command, "--json").json()
    assert {(line["algorithm"], line["epsilon"]) for line in content["frontier"]} == {
        ("non-private", None),
        (NETWORK, None),
        *((name, 1.0) for name in ("Laplace", "Discrete", "Gaussian", NETWORK)),
    }
    assert len(list((tmp_path / "cells").glob("*.json"))) == len(content["cells"]) == 6
    for file in content["files"]:
        assert Path(file).stat().st_size > 100
    monkeypatch.setattr("tpsl_research.frontier.run_cell", None)
    shown = tpsl(*command)
    assert "not private" in shown.stderr
    assert str(tmp_path / "frontier.svg") in shown.stdout


def test_the_frontier_takes_any_job_and_says_what_does_not_apply(
    tpsl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of two parties with features at both, split by time."""
    monkeypatch.setattr("tpsl_research.frontier_cells.BASELINE_SPACE", (configuration(1e-2),))
    monkeypatch.setattr("tpsl.select.space.RECOMMENDED_SPACE", (configuration(1e-2),))
    rng = np.random.default_rng(0)
    ids, x, own = [f"r{number:04}" for number in range(800)], rng.normal(size=800), rng.normal(size=800)
    label = (x + own + rng.logistic(size=800) > 0).astype(int)
    days = np.arange(800) // 20
    pyarrow.csv.write_csv(pa.table({"id": ids, "x": x, "day": days}), tmp_path / "shop.csv")
    pyarrow.csv.write_csv(pa.table({"id": ids, "own": own, "label": label, "day": days}), tmp_path / "bank.csv")
    data = {
        "source": "table",
        "features": [{"party": "shop", "path": "shop.csv", "numeric": ["x"], "time": "day"}],
        "label": {"path": "bank.csv", "numeric": ["own"], "time": "day"},
        "split": "chronological",
    }
    job = {"data": data, "model": {"bottom": [8], "top": [8]}, "privacy": {"epsilon": 0.3}, "training": {"epochs": 9}}
    (tmp_path / "credit.yaml").write_text(yaml.safe_dump(job))
    command = ("research", "frontier", tmp_path / "credit.yaml", "--seeds", 1, "--epsilon", 2, "--head", "private")
    assert "local.not_private=true" in tpsl(*command, "--out", tmp_path / "out").error()
    options = (
        "--set=local.not_private=true",
        *(part for name in ("network", "hand-over", "trees", "joined-logistic") for part in ("--method", name)),
        "--processes",
        1,
        "--out",
        tmp_path / "out",
    )
    found = tpsl(*command, *options, "--json").json()
    assert found["data"] == "credit"
    without_noise, network, handed_over, trees, joined = (
        next(cell for cell in found["cells"] if (cell["algorithm"], cell["epsilon"]) == wanted)
        for wanted in ((NETWORK, None), *((name, 2.0) for name in (NETWORK, HANDED_OVER, TREES, JOINED_LOGISTIC)))
    )
    assert without_noise["results"]["ensemble"]["test_auc"] > 0.7
    assert network["results"]["best"]["epoch"] <= 3, "how long to train is not the job's"
    for cell in (handed_over, trees):
        assert cell["results"] == {}
        assert "the label party has features of its own" in cell["failed"]
    assert joined["results"]["run"]["test_auc"] > 0.7
    assert "## Without a result" in (tmp_path / "out" / "frontier.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run(tpsl: Any, small_job: Path, folder: Path) -> Path:
    """A run, trained once for all tests."""
    if not (folder / "run").exists():
        assert tpsl("train", small_job, "--set=training.epochs=2", "--out", folder / "run", "--json").status == 0
    return folder / "run"


def test_figures_say_what_was_written_and_what_could_not_be_drawn(tpsl: Any, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    content = tpsl("research", "figures", run, "--out", out, "--format", "svg", "--json").json()
    assert sorted(content["files"]) == [str(out / name) for name in ("curves.svg", "runs.md", "runs.tex")]
    assert sorted(map(str, out.iterdir())) == sorted(content["files"])
    assert content["left_out"].keys() == {"epsilon", "attack", "roc"}
    shown = tpsl("research", "figures", run, "--out", out, "--format", " PNG")
    assert shown.stdout.splitlines() == [str(out / name) for name in ("curves.png", "runs.tex", "runs.md")]
    assert "roc: not drawn, it needs a run that was attacked" in shown.stderr


def test_wrong_input_of_figures_is_one_sentence(tpsl: Any, run: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "figures")
    assert "Missing argument 'RUN…'" in tpsl("research", "figures").error(status=2)
    assert (
        f"{tmp_path / 'absent'}: is not a run folder" in tpsl("research", "figures", tmp_path / "absent", *out).error()
    )
    assert (
        "--format: 'gif' is none of png, svg, pdf"
        in tpsl("research", "figures", run, "--format", "png", "--format", "gif", *out).error()
    )
    assert "--format: '' is none of png, svg, pdf" in tpsl("research", "figures", run, "--format", "", *out).error()
    (tmp_path / "file").write_text("")
    assert "file: it is no folder" in tpsl("research", "figures", run, "--out", tmp_path / "file").error()
    shutil.copytree(run, tmp_path / "broken")
    (tmp_path / "broken" / "result.json").write_text("[]")
    assert "result.json: is damaged" in tpsl("research", "figures", run, tmp_path / "broken", *out).error()
    assert not (tmp_path / "figures").exists()
