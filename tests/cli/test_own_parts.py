"""Parts of a user's own, from the files in `examples/own-parts/`: through the command line, in one process and in two
over mutual TLS, in the vault, in attacks and in the audit. No file of the package knows of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpsl.mechanisms import TOTAL
from tpsl.vault import Vault, the_vault

FILES = Path(__file__).parents[2] / "examples" / "own-parts"
SHORT = ("--set=training.epochs=1", "--set=local.threads=1")


@pytest.fixture
def ours(programs: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Run a command that knows our parts, in a folder with our files."""
    shutil.copytree(FILES, tmp_path / "ours")
    return lambda *arguments: programs(tmp_path / "ours", "--use", "house_parts", *arguments, "--json")


def weights(*runs: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for run in runs for file in run.glob("*/*.safetensors")}


def test_own_parts_train_over_a_network_and_are_verified_attacked_and_audited(
    ours: Callable[..., Any], programs: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "ours"
    ours("certs", "job.yaml").result()
    door = ("--certs", "certs/label", "--listen", "127.0.0.1:0", "--set=local.log=[json, csv]")
    label = ours("label", "serve", "job.yaml", "--local", "label.yaml", *door, *SHORT, "--out", "at_label")
    address = label.wait_for("listening")["address"]
    door = ("--certs", "certs/shop", "--connect", address, "--set=local.log=[json, csv, diary=diary.txt]")
    shop = ours("feature", "join", "job.yaml", "--local", "shop.yaml", *door, *SHORT, "--out", "at_shop")
    assert (label.result()["mechanism"], shop.result()["steps"]) == ("ordinal", 12)

    # The same vault in one process: the same noisy labels, loss and optimisers, so the same weights.
    both = ("--local", "shop.yaml", "--local", "label.yaml")
    ours("train", "job.yaml", *both, *SHORT, "--out", "one", "--set=local.record_transcript=true").result()
    assert weights(folder / "at_label", folder / "at_shop") == weights(folder / "one")

    # Loggers and observers heard what their side may know; what true labels say comes with another command.
    assert "auc" not in (folder / "at_label" / "label" / "curves.csv").read_text()
    ours("label", "evaluate", "at_label", "--set=local.log=csv").result()
    curves = {side: (folder / f"at_{side}" / side / "curves.csv").read_text() for side in ("label", "shop")}
    assert "test_auc" in curves["label"]
    assert {line.split(",")[1] for line in curves["shop"].splitlines()} <= {"samples_per_second"}
    assert "finished" in (folder / "diary.txt").read_text()
    assert "auc" not in (folder / "diary.txt").read_text()

    # The ledger holds the integers: whoever has none of our code can verify what was drawn.
    assert programs(folder, "vault", "verify", "--json").result()["sound"] is True
    with Vault.open(the_vault()) as opened:
        (spec,) = {json.dumps(e.details["mechanism"]) for e in opened.ledger().entries if e.kind == "released"}
    assert [sum(row) for row in json.loads(spec)["weights"]] == [TOTAL] * 5

    found = ours("attack", "one", "--only", "likelihood", "--only", "expected_stars").result()["attacks"]
    assert set(found) == {"likelihood", "expected_stars"}
    margin = found["likelihood"]["auc_high"] - found["likelihood"]["auc_low"]
    assert abs(found["likelihood"]["auc"] - found["likelihood"]["closed_form"]) < 1.25 * margin  # about five deviations
    audit = ours("audit", "one", "--set=training.epochs=1").result()
    assert audit["passed"] is True


def test_names_that_this_side_has_not_registered_are_refused_with_those_it_has(
    programs: Callable[..., Any], ours: Callable[..., Any], tmp_path: Path
) -> None:
    refused = programs(tmp_path / "ours", "train", "job.yaml", "--out", "run")
    known = "known are auto, none, laplace, discrete, gaussian, subset_selection, optimized_unary, randomized_response"
    assert f"unknown mechanism 'ordinal'; {known}" in refused.error()
    unknown = ours("train", "job.yaml", "--set=privacy.mechanism=ordinl", "--out", "run")
    assert f"unknown mechanism 'ordinl'; {known}, ordinal" in unknown.error()
