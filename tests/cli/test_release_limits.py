"""What a label party has to permit: a δ above 1/records, in every command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.report.words import LARGE_DELTA_TEXT

HALF = ("--set=privacy.mechanism=gaussian", "--set=privacy.sigma=1", "--set=privacy.delta=0.5")


def test_a_run_with_a_large_delta_is_refused_unless_permitted_and_is_not_simply_called_private(
    tpsl: Any, small_job: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    sentence = tpsl("train", small_job, *HALF, "--out", run).error()
    assert "a record would have δ = 0.5 in all, more than 1/records = 0.00313 for 320 records" in sentence
    assert not (run / "label" / "vault").exists()
    shown = tpsl("train", small_job, *HALF, "--set=local.max_delta=0.5", "--out", run)
    assert shown.status == 0, shown.stderr
    assert shown.facts()["guarantee"].endswith(f", δ = 0.5. {LARGE_DELTA_TEXT}")


def test_the_label_party_refuses_before_it_listens(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    job = yaml.safe_load(small_job.read_text())
    job["privacy"] = {"mechanism": "gaussian", "sigma": 1.0, "delta": 0.5}
    small_job.write_text(yaml.safe_dump(job))
    serve = (
        "label",
        "serve",
        small_job,
        "--listen",
        "127.0.0.1:0",
        "--set=local.insecure_loopback=true",
        "--out",
        tmp_path / "run",
    )
    refused = tpsl(*serve, "--set=local.wait=0")
    assert "δ = 0.5 in all, more than 1/records" in refused.error()
    assert "listening" not in refused.stderr
    (tmp_path / "local.yaml").write_text("max_delta: 0.5\nwait: 0.0\n")
    waited = tpsl(*serve, "--local", tmp_path / "local.yaml").error()
    assert "δ" not in waited
    assert "feature" in waited  # nobody came


@pytest.fixture
def twins(tmp_path: Path) -> Path:
    """A job whose table has one record under two ids."""
    ids = [*(f"r{row}" for row in range(60)), "R7"]
    (tmp_path / "shop.csv").write_text("id,pages\n" + "".join(f"{id},{at % 7}\n" for at, id in enumerate(ids)))
    (tmp_path / "bank.csv").write_text("id,label\n" + "".join(f"{id},{at % 2}\n" for at, id in enumerate(ids)))
    job = {
        "data": {
            "source": "table",
            "features": [{"path": "shop.csv", "numeric": ["pages"]}],
            "label": {"path": "bank.csv"},
            "test_fraction": 0.02,
        },
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"batch_size": 20, "epochs": 1},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    return tmp_path / "job.yaml"


def test_a_run_warns_of_near_duplicate_ids_when_it_stores_them(tpsl: Any, twins: Path, tmp_path: Path) -> None:
    sentence = "1 id is a near-duplicate of an earlier one, for example "
    first = tpsl("train", twins, "--out", tmp_path / "run")
    assert (first.status, first.stderr.count(sentence)) == (0, 1), first.stderr
    again = tpsl("train", twins, "--out", tmp_path / "again")
    assert (again.status, again.stderr.count(sentence)) == (0, 0), again.stderr
    removed = tpsl("train", twins, "--set=local.allow_lookalikes=true", "--out", tmp_path / "other")
    assert "there is no key 'local.allow_lookalikes'" in removed.error()
