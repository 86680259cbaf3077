"""Units in a job: the ledger of a run states what a person has spent, however many of the records are theirs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tpsl.mechanisms import laplace, randomized_response
from tpsl.report.run_reading import read_run
from tpsl.run.job import Job, JobError, make_job
from tpsl.run.one_process import train
from tpsl.tables import DataError
from tpsl.vault import Spent, Vault, VaultError

RECORDS, EACH = 60, 4
CLASSES = ["none", "few", "many"]


def tables(folder: Path, **label: Any) -> Job:
    """A job of three classes with text labels; each customer has four records. No unit unless it is asked for."""
    with (folder / "shop.csv").open("w", newline="") as shop, (folder / "bank.csv").open("w", newline="") as bank:
        csv.writer(shop).writerows([["id", "pages"], *([f"r{row}", row % 7] for row in range(RECORDS))])
        rows = [[f"r{row}", CLASSES[row % 3], f"customer {row // EACH}", row % 2 or ""] for row in range(RECORDS)]
        csv.writer(bank).writerows([["id", "orders", "customer", "often missing"], *rows])
    content = {
        "data": {
            "source": "table",
            "features": [{"path": str(folder / "shop.csv"), "numeric": ["pages"]}],
            "label": {"path": str(folder / "bank.csv"), "label": "orders", **label},
            "classes": 3,
            "class_values": CLASSES,
            "split": "random",
            "test_fraction": 0.1,
        },
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"batch_size": 18, "epochs": 1},
    }
    return make_job(content, {}, "test")


def test_a_run_with_text_labels_and_units_accounts_for_each_customer(tmp_path: Path) -> None:
    train(tables(tmp_path, unit="customer"), tmp_path / "run")
    epsilon = randomized_response(1.0, 3).epsilon
    with Vault.open(tmp_path / "run" / "label" / "vault") as vault:
        ledger = vault.ledger()
        assert vault.verify() == []
    assert (ledger.released_records, ledger.epsilon_per_record) == (54, epsilon)
    assert ledger.largest_unit == Spent(epsilon=EACH * epsilon, delta=0.0, records=EACH, who="unit")
    shown = read_run(tmp_path / "run").ledger
    assert shown is not None
    assert shown.largest_unit == ledger.largest_unit


def test_a_vault_that_does_not_know_the_units_of_the_job_is_refused(tmp_path: Path) -> None:
    train(tables(tmp_path), tmp_path / "before", vault=tmp_path / "vault")
    job = tables(tmp_path, unit="customer")
    with pytest.raises(VaultError, match=r"the record 'r\d+' is in the vault without a unit, not with 'customer \d+'"):
        train(job, tmp_path / "run", vault=tmp_path / "vault")
    rows = [[f"r{row}" for row in range(RECORDS)], [row % 3 for row in range(RECORDS)], ["everybody"] * RECORDS]
    Vault.create(tmp_path / "other", classes=3, batches=[tuple(rows)], apart="others").close()
    with pytest.raises(VaultError, match=r"is in the vault with unit 'everybody', not with 'customer \d+'"):
        train(job, tmp_path / "another", vault=tmp_path / "other")
    with Vault.open(tmp_path / "other") as vault:
        assert vault.ledger().released_records == 0


def test_units_are_no_part_of_the_agreement(tmp_path: Path) -> None:
    with_units, without = tables(tmp_path, unit="customer"), tables(tmp_path)
    assert with_units.digest() == without.digest()
    assert with_units.first_disagreement(without) is None
    assert "customer" not in str(with_units.agreed())
    assert "data.label.unit" in str(with_units.first_difference(without))


def test_a_missing_unit_and_a_column_that_is_something_else_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"bank\.csv: column 'often missing', row 1: the unit is missing"):
        train(tables(tmp_path, unit="often missing"), tmp_path / "run")
    with pytest.raises(DataError, match=r"bank\.csv: there is no column 'custmer'"):
        train(tables(tmp_path, unit="custmer"), tmp_path / "run")
    for column in ("id", "orders"):
        with pytest.raises(JobError, match=rf"data\.label: .*column '{column}' is the id or the label"):
            tables(tmp_path, unit=column)


def test_other_units_than_those_of_the_vault_are_found_far_down(tmp_path: Path) -> None:
    with Vault.create(tmp_path / "vault", batches=[(range(9), [0] * 9, ["u"] * 9)]) as vault:
        vault.release(laplace(1.0))
        vault.require_units(range(8, -1, -1), ["u"] * 9)
        with pytest.raises(VaultError, match="the record '8' is in the vault with unit 'u', not with 'v'"):
            vault.require_units(range(9), ["u"] * 8 + ["v"])
        with pytest.raises(VaultError, match="does not know 1 of the 1 records"):
            vault.require_units(["nine"], ["u"])
