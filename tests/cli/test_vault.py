"""`tpsl vault` from a CSV file to a verified ledger."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import laplace, randomized_response
from tpsl.vault import Vault

RECORDS = 60


def write_csv(path: Path, labels: list[int], first: int = 0) -> Path:
    lines = [f"r{first + row},{label},user{(first + row) // 4}" for row, label in enumerate(labels)]
    path.write_text("\n".join(["record,clicked,user", *lines]) + "\n")
    return path


@pytest.fixture
def vault(tpsl: Any, tmp_path: Path) -> Path:
    """A vault that was created on the command line, with four records of each user."""
    table = write_csv(tmp_path / "labels.csv", [row % 2 for row in range(RECORDS)])
    made = tpsl("vault", "create", tmp_path / "vault", table, *COLUMNS, "--json").json()
    assert made == {"vault": str(tmp_path / "vault"), "records": RECORDS, "classes": 2}
    return tmp_path / "vault"


COLUMNS = ("--id", "record", "--label", "clicked", "--unit", "user")
DISCRETE = ("--mechanism", "discrete", "--epsilon", 1)


def noisy(vault: Path) -> np.ndarray:
    with Vault.open(vault) as opened:
        ids = [f"r{row}" for row in range(RECORDS)]
        return opened.noisy_labels(randomized_response(1.0), ids).draws[0]


def test_a_release_happens_once(tpsl: Any, vault: Path) -> None:
    first = tpsl("vault", "release", vault, *DISCRETE, "--json").json()
    assert first == {
        "vault": str(vault),
        "mechanism": "discrete",
        "draws": 1,
        "epsilon": randomized_response(1.0).epsilon,
        "delta": 0.0,
        "private": True,
        "released": RECORDS,
        "already_released": 0,
        "composed": 0,
        "epsilon_per_record": randomized_response(1.0).epsilon,
    }
    before = noisy(vault)
    again = tpsl("vault", "release", vault, "--mechanism", "randomized_response", "--epsilon", 1, "--json").json()
    assert (again["mechanism"], again["released"], again["already_released"]) == ("discrete", 0, RECORDS)
    assert np.array_equal(noisy(vault), before)
    assert tpsl("vault", "verify", vault, "--json").json() == {"vault": str(vault), "sound": True, "problems": []}


def test_another_release_is_refused_with_the_count_unless_composed(tpsl: Any, vault: Path) -> None:
    tpsl("vault", "release", vault, *DISCRETE)
    sentence = tpsl("vault", "release", vault, "--mechanism", "laplace", "--epsilon", 0.5).error()
    assert str(RECORDS) in sentence
    assert "compose" in sentence
    composed = tpsl("vault", "release", vault, "--mechanism", "laplace", "--epsilon", 0.5, "--compose", "--json").json()
    total = randomized_response(1.0).epsilon + laplace(0.5).epsilon
    assert composed["composed"] == RECORDS
    assert composed["epsilon_per_record"] == pytest.approx(total, rel=1e-15)
    ledger = tpsl("vault", "ledger", vault, "--json").json()
    assert [entry["kind"] for entry in ledger["entries"]] == ["created", "added", "released", "released"]
    assert ledger["epsilon_per_record"] == composed["epsilon_per_record"]
    assert ledger["largest_unit"]["records"] == 4
    assert ledger["largest_unit"]["epsilon"] == pytest.approx(4 * total, rel=1e-15)
    assert ledger["private"] is True


def test_the_ledger_for_people(tpsl: Any, vault: Path) -> None:
    tpsl("vault", "release", vault, "--mechanism", "laplace", "--epsilon", 0.5, "--draws", 2)
    shown = tpsl("vault", "ledger", vault)
    assert shown.status == 0
    assert "largest ε of any record: 1\n" in shown.stdout
    assert "largest ε of any unit: 4 (a unit with 4 records)\n" in shown.stdout
    assert "NOT PRIVATE" not in shown.stdout


@pytest.mark.parametrize(
    ("options", "private"),
    [
        (("--mechanism", "none", "--not-private"), False),
        (("--mechanism", "discrete", "--epsilon", 1, "--insecure-noise-seed", 7, "--not-private"), False),
        (("--mechanism", "gaussian", "--sigma", 2, "--delta", 1e-5), True),
        (("--mechanism", "laplace", "--epsilon", 1, "--draws", 2), True),
    ],
)
def test_private_or_not_is_said_everywhere(tpsl: Any, vault: Path, options: tuple[object, ...], private: bool) -> None:
    released = tpsl("vault", "release", vault, *options, "--json")
    assert released.json()["private"] is private
    assert ("NOT PRIVATE" in released.stderr) == ("--insecure-noise-seed" in options)
    assert tpsl("vault", "ledger", vault, "--json").json()["private"] is private
    assert ("NOT PRIVATE" in tpsl("vault", "ledger", vault).stdout) != private
    assert tpsl("vault", "verify", vault).status == 0


@pytest.mark.parametrize(
    ("options", "permission"),
    [
        (("--mechanism", "none"), ("--not-private",)),
        (("--mechanism", "discrete", "--epsilon", 1, "--insecure-noise-seed", 7), ("--not-private",)),
        (("--mechanism", "laplace", "--epsilon", 11), ("--max-epsilon", 11)),
        (("--mechanism", "laplace", "--epsilon", 6, "--draws", 2), ("--max-epsilon", 12)),
    ],
)
def test_a_release_that_was_not_permitted_is_refused(
    tpsl: Any, vault: Path, options: tuple[object, ...], permission: tuple[object, ...]
) -> None:
    assert str(permission[0]) in tpsl("vault", "release", vault, *options).error()
    assert tpsl("vault", "ledger", vault, "--json").json()["released_records"] == 0
    assert tpsl("vault", "release", vault, *options, *permission).status == 0


def test_the_same_seed_gives_the_same_noise(tpsl: Any, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "labels.csv", [row % 2 for row in range(RECORDS)])
    drawn = []
    for name in ("a", "b"):
        tpsl("vault", "create", tmp_path / name, table, *COLUMNS)
        tpsl("vault", "release", tmp_path / name, *DISCRETE, "--insecure-noise-seed", 7, "--not-private")
        with Vault.open(tmp_path / name) as opened:
            ids = [f"r{row}" for row in range(RECORDS)]
            drawn.append(opened.noisy_labels(randomized_response(1.0), ids, seed=7).draws[0])
    assert np.array_equal(*drawn)


def test_records_that_arrive_later_are_released_alone_and_changed_labels_are_a_warning(
    tpsl: Any, vault: Path, tmp_path: Path
) -> None:
    tpsl("vault", "release", vault, *DISCRETE)
    before = noisy(vault)
    changed = [1 - row % 2 if row < 5 else row % 2 for row in range(RECORDS)]
    more = write_csv(tmp_path / "more.csv", [*changed, 1, 0, 1])
    added = tpsl("vault", "add", vault, more, *COLUMNS, "--json")
    counts = {"new": 3, "unchanged": RECORDS - 5, "changed": 5, "changed_after_release": 5}
    assert added.json() == {"vault": str(vault), **counts}
    assert "warning: 5 records have another label now than when they were released" in added.stderr
    again = tpsl("vault", "add", vault, more, *COLUMNS)
    assert again.stdout == f"{vault}: 0 new, {RECORDS + 3} known, 0 with another label\n"
    assert "warning" not in again.stderr
    released = tpsl("vault", "release", vault, *DISCRETE, "--json").json()
    assert (released["released"], released["already_released"]) == (3, RECORDS)
    assert np.array_equal(noisy(vault), before)


def test_tampering_is_found_and_the_exit_status_says_so(tpsl: Any, vault: Path) -> None:
    tpsl("vault", "release", vault, *DISCRETE)
    connection = sqlite3.connect(vault / "vault.sqlite")
    (body,) = connection.execute("SELECT body FROM ledger WHERE sequence = 3").fetchone()
    connection.execute("DROP TRIGGER ledger_fixed")
    connection.execute("UPDATE ledger SET body = ? WHERE sequence = 3", (body.replace('"draws":1', '"draws":2'),))
    connection.commit()
    connection.close()
    found = tpsl("vault", "verify", vault, "--json")
    assert found.status == 1
    content = json.loads(found.stdout)
    assert content["sound"] is False
    assert any("ledger entry 3 was changed" in problem for problem in content["problems"])
    shown = tpsl("vault", "verify", vault)
    assert shown.status == 1
    assert shown.stdout == ""
    assert [line for line in shown.stderr.splitlines() if line] == content["problems"]


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        (("--mechanism", "laplace"), "mechanism 'laplace' needs --epsilon"),
        ((), "mechanism 'discrete' needs --epsilon"),
        (("--mechanism", "gaussian", "--sigma", 1), "mechanism 'gaussian' needs --delta"),
        (("--mechanism", "none", "--epsilon", 1), "mechanism 'none' does not take --epsilon"),
        (("--mechanism", "laplace", "--epsilon", 1, "--sigma", 1), "mechanism 'laplace' does not take --sigma"),
        (("--epsilon", 0), "0"),
        (("--epsilon", -1), "-1"),
        (("--epsilon", "nan"), "nan"),
        (("--mechanism", "gaussian", "--sigma", 0, "--delta", 1e-5), "sigma"),
    ],
)
def test_a_release_needs_its_parameters(tpsl: Any, vault: Path, options: tuple[object, ...], culprit: str) -> None:
    assert culprit in tpsl("vault", "release", vault, *options).error()
    assert tpsl("vault", "ledger", vault, "--json").json()["released_records"] == 0


def test_a_faulty_table_leaves_no_vault(tpsl: Any, tmp_path: Path) -> None:
    vault, table = tmp_path / "vault", tmp_path / "labels.csv"
    assert str(table) in tpsl("vault", "create", vault, table).error()
    write_csv(table, [0, 1, 2])
    assert "clicks" in tpsl("vault", "create", vault, table, "--id", "record", "--label", "clicks").error()
    assert f"{table}, row 3" in tpsl("vault", "create", vault, table, *COLUMNS).error()
    assert not vault.exists()
    assert tpsl("vault", "create", vault, table, *COLUMNS, "--classes", 3).status == 0
    assert str(vault) in tpsl("vault", "create", vault, table, *COLUMNS, "--classes", 3).error()


@pytest.mark.parametrize("command", ["release", "ledger", "verify"])
def test_a_path_that_is_no_vault_is_named(tpsl: Any, tmp_path: Path, command: str) -> None:
    options = ("--epsilon", 1) if command == "release" else ()
    assert str(tmp_path) in tpsl("vault", command, tmp_path, *options).error()
    (tmp_path / "vault.sqlite").write_text("no database at all " * 100)
    assert str(tmp_path) in tpsl("vault", command, tmp_path, *options).error()
