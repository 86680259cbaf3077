"""`tpsl label evaluate`: a file that may be handed over, and what it cost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tpsl.net.certificates import create_authority, issue


@pytest.fixture
def run(tpsl: Any, small_job: Path, tmp_path: Path) -> Path:
    vault = ("--vault", tmp_path / "vault")
    assert (
        tpsl(
            "train", small_job, "--set=data.rows=2000", *vault, "--out", tmp_path / "run", "--set=local.log=none"
        ).status
        == 0
    )
    return tmp_path / "run"


def test_it_writes_what_it_shows_and_says_what_it_cost(tpsl: Any, run: Path, tmp_path: Path) -> None:
    shown = tpsl("label", "evaluate", run, "--epsilon", 0.5)
    assert shown.status == 0, shown.stderr
    content = json.loads((run / "shared_metrics.json").read_text())
    loss = content["metrics"]["log_loss"]
    assert shown.stdout.startswith("Evaluated on noisy labels of 400 test records, discrete (ε = 0.5)\n")
    facts = shown.facts()
    assert facts["log loss"] == f"{loss['value']:.4f} ± {loss['standard_error']:.4f}"
    assert facts["guarantee"] == "test records have spent ε = 0.5 in all"
    assert facts["to hand over"] == str(run / "shared_metrics.json")
    assert "400 noisy labels released with discrete (ε = 0.5)\n" in shown.stderr
    again = tpsl("label", "evaluate", run, "--epsilon", 0.5, "--out", tmp_path / "copy.json", "--json")
    spent = {"total_epsilon": 0.5, "total_delta": 0.0, "private": True}
    assert again.json() == {"file": str(tmp_path / "copy.json"), **spent, **content}
    assert "all 400 noisy labels were released before, with discrete (ε = 0.5)" in again.stderr
    assert (tmp_path / "copy.json").read_bytes() == (run / "shared_metrics.json").read_bytes()


def test_ledger_statement_and_verification_know_of_it(tpsl: Any, run: Path, tmp_path: Path) -> None:
    tpsl("label", "evaluate", run, "--epsilon", 0.5)
    vault = tmp_path / "vault"
    ledger = tpsl("vault", "ledger", vault, "--json").json()
    assert (ledger["records"], ledger["released_records"]) == (2000, 2000)
    assert tpsl("vault", "verify", vault, "--json").json()["sound"]
    create_authority(tmp_path / "authority")
    issue(tmp_path / "authority", tmp_path / "certs" / "label", "label", label=True)
    stated = tpsl("vault", "statement", vault, "--certs", tmp_path / "certs" / "label", "--out", tmp_path, "--json")
    assert [(one["mechanism"], one["records"]) for one in stated.json()["content"]["releases"]] == [
        ("laplace (ε = 2)", 1600),
        ("discrete (ε = 0.5)", 400),
    ]


def test_what_the_local_file_forbids_is_refused(tpsl: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "local.yaml").write_text("max_epsilon: 0.4\n")
    refused = tpsl("label", "evaluate", run, "--epsilon", 0.5, "--local", tmp_path / "local.yaml").error()
    assert "bring the records to ε = 0.5 in all, more than the ε = 0.4 that the label party permits" in refused
    assert not (run / "shared_metrics.json").exists()
    assert tpsl("label", "evaluate", run, "--epsilon", 0.4, "--local", tmp_path / "local.yaml").status == 0
    assert "local.compose=true" in tpsl("label", "evaluate", run, "--epsilon", 1).error()
    both = tpsl("label", "evaluate", run, "--epsilon", 1, "--set=local.compose=true", "--json").json()
    assert both["total_epsilon"] == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--epsilon", 1, "--set=privacy.mechanism=none"), "mechanism 'none' does not take epsilon"),
        (("--epsilon", 1, "--set=privacy.mechanism=gaussian"), "mechanism 'gaussian' does not take epsilon"),
        (
            ("--epsilon", 1, "--set=privacy.mechanism=laplacian"),
            "unknown mechanism 'laplacian'; known are auto, none, laplace",
        ),
        (("--epsilon", 0), "epsilon must be a positive number"),
        (("--epsilon", 1, "--set=training.epochs=3"), "this command takes only keys of privacy and local"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(tpsl: Any, run: Path, options: tuple[Any, ...], sentence: str) -> None:
    assert sentence in tpsl("label", "evaluate", run, *options).error()


@pytest.mark.parametrize("option", [("--set=privacy.mechanism=laplace",), ("--out", "shared.json")])
def test_true_labels_are_not_released(tpsl: Any, run: Path, option: tuple[str, str]) -> None:
    assert "are for --epsilon" in tpsl("label", "evaluate", run, *option).error(2)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "test AUC" in tpsl("label", "evaluate", run).facts()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before, "it is only read"


def test_it_takes_nothing_of_the_feature_party_and_leaves_nothing_with_it(tpsl: Any, run: Path) -> None:
    """Whatever a feature party asks for: an evaluation is a command of the label party, which has the file."""
    shutil.rmtree(run / "feature")
    before = {path.name for path in run.iterdir()}
    assert tpsl("label", "evaluate", run, "--epsilon", 0.5).status == 0
    assert {path.name for path in run.iterdir()} - before == {"shared_metrics.json"}
    assert (run / "shared_metrics.json").stat().st_mode & 0o777 == 0o600


def test_a_vault_that_was_moved_is_named(tpsl: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "vault").rename(tmp_path / "elsewhere")
    assert str(tmp_path / "vault") in tpsl("label", "evaluate", run, "--epsilon", 0.5).error()
    assert tpsl("label", "evaluate", run, "--epsilon", 0.5, f"--set=local.vault={tmp_path / 'elsewhere'}").status == 0
