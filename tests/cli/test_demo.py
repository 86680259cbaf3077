"""`tpsl demo`: three runs, three attacks, one table and one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tpsl.attacks.auc_prediction import predicted_auc
from tpsl.mechanisms import laplace, randomized_response
from tpsl.run.run_folder import RunFolder

QUICK = ("--rows", 2000)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "demo"


def test_the_demo_as_json_says_what_was_promised_and_what_the_attack_got(tpsl: Any, out: Path) -> None:
    content = tpsl("demo", "--rows", 8000, "--out", out, "--json").json()
    assert content["page"] == str(out / "report.html")
    plain, paper, ours = content["runs"]
    assert [run["mechanism"] for run in content["runs"]] == ["none", "laplace", "discrete"]
    assert [run["private"] for run in content["runs"]] == [False, True, True]
    assert plain["epsilon"] is None
    assert (paper["epsilon"], paper["estimator"]) == (laplace(1.0).epsilon, "linear")
    assert (ours["epsilon"], ours["estimator"]) == (randomized_response(1.0).epsilon, "posterior")
    assert [run["gone_vaults"] for run in content["runs"]] == [0, 0, 0]  # these labels are public
    assert plain["attack_auc"] == pytest.approx(1.0, abs=1e-6)
    for folder, run, mechanism in (("paper", paper, laplace(1.0)), ("tpsl", ours, randomized_response(1.0))):
        attacks = json.loads((out / folder / "label" / "attacks.json").read_text())["attacks"]
        assert run["predicted_auc"] == predicted_auc(mechanism).shortest_distance
        # Six standard errors, 0.0067 each with 6400 attacked records.
        assert attacks["shortest_distance"]["auc"] == pytest.approx(run["predicted_auc"], abs=0.04)
        assert 0 < run["test_auc"] < 1
        # The table shows the attacker that a feature party is: it has features, too.
        of_run = {name: attack for name, attack in attacks.items() if attack["scored_by"] != "features"}
        assert run["attack_auc"] == max(attack["auc"] for attack in of_run.values())
        assert run["attack_auc"] >= attacks["noisy_label_with_features"]["auc"]
        assert (run["bound"], run["bound_of"]) == tuple(attacks[run["attack"]][key] for key in ("ceiling", "scored_by"))
    assert ours["test_auc"] > paper["test_auc"]


def test_the_demo_ends_with_a_table_and_the_path_of_the_page(tpsl: Any, out: Path) -> None:
    shown = tpsl("demo", *QUICK, "--out", out)
    assert shown.status == 0, shown.stderr
    assert f"The page: {out / 'report.html'}" in shown.stdout.splitlines()
    assert shown.stdout.splitlines()[-1].endswith("tpsl init features.csv labels.csv")
    for heading in ("ε", "Test AUC", "Attack AUC", "Bound"):
        assert heading in shown.stdout
    for run in ("plain split learning", "the paper (Laplace)", "tpsl"):
        assert run in shown.stdout
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<html" in page
    assert ">shortest distance</text>" in page
    assert "These labels are public" in page and "that runs name" not in page


def test_the_last_run_is_what_a_user_gets_without_options(tpsl: Any, out: Path, tmp_path: Path) -> None:
    options = ("--data", "flights", "--set=data.rows=2000", "--epsilon", 1, "--out", tmp_path / "run")
    assert tpsl("train", *options, "--json").json()["mechanism"] == "discrete"
    mine, ours = RunFolder(tmp_path / "run").job(), RunFolder(out / "tpsl").job()
    assert mine == ours
    assert mine.model.wide and mine.training.patience == 2
    assert RunFolder(out / "plain").job().first_difference(mine) == "privacy.mechanism: 'none' against 'auto'"


def test_the_demo_deletes_nothing_but_its_own_runs(tpsl: Any, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "photo").write_text("precious")
    assert str(tmp_path / "plain") in tpsl("demo", *QUICK, "--out", tmp_path).error()
    assert (tmp_path / "plain" / "photo").read_text() == "precious"
