"""Vaults of older versions, as these have written them: they are opened, and keep all that was ever released."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import DiscreteLaplace, laplace, randomized_response
from tpsl.vault import LargestUnit, Lookalikes, StatisticPlan, Vault, VaultError, migrating
from tpsl.vault.storage import APPLICATION_ID

IDS = [f"C{number:02}" for number in range(30)] + ["c 7", "late"]
LABELS = [0 if id == "C03" else number % 2 for number, id in enumerate(IDS[:31])] + [1]
RELEASED = {
    1: "1529 1487 1379 1526 1503 1565 1600 1579 1541 1634 1530 1509 1449 1521 1651 1713 1603 1600 1521 1698",
    3: "1569 1578 1768 1577 1549 1530 1576 1665 1451 1744 1497 1713 1612 1721 1516 1598 1863 1720 1328 1558",
    2: "1593 1550 1504 1537 1600 1491 1474 1573 1507 1590 1592 1623 1558 1684 1561 1608 1514 1587 1484 1637",
}
HEADS = {
    1: "eb35d6a30b11275c1ded468c3c909b486f3055fef242d6651e61edbff9989151",
    3: "ea1bf91564f9cc8013b59a72cd8d241601e29dc35efacb4b7d5dc04f60ac87e9",
    2: "3d95aa1a6d1d07c0cf7b241a73ff27b2529a62c61278bbc7724fce323bbd99da",
}
IDS_DIGEST = "f8613e8ac0edaffac348d358cda5dc2a4db06c478e942547ad0637b1ddeb8a1c"


def made_by_an_older_version(folder: Path, number: int, change: str = "") -> Path:
    """A vault of this format, from the dump of one that the version of that time has made."""
    folder.mkdir(mode=0o700)
    dump = (Path(__file__).parent / "old_formats" / f"format-{number}.sql").read_text()
    with closing(sqlite3.connect(folder / "vault.sqlite")) as connection:
        connection.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number};\n{dump}")
        connection.executescript(change)
    (folder / "vault.sqlite").chmod(0o600)
    return folder


def version_of(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "vault.sqlite")) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_vault_of_an_older_format_keeps_its_records_ledger_and_releases(folder: Path, number: int) -> None:
    made_by_an_older_version(folder, number)
    with Vault.open(folder) as vault:
        assert version_of(folder) == 4
        assert vault.verify() == []
        assert vault.head() == HEADS[number]
        assert vault.statement()["ids_digest"] == IDS_DIGEST
        assert vault.positions(IDS).tolist() == list(range(32))
        assert vault.true_labels_for_evaluation(IDS).tolist() == LABELS
        vault.require_units(["C00", "late"], ["user0", "é"])
        assert vault.noisy_labels(laplace(1.0), IDS[:20]).draws[0].tolist() == list(map(int, RELEASED[number].split()))
        assert len(vault.noisy_labels(randomized_response(0.5), ["late"], draws=2).draws) == 2
        assert vault.ledger().largest_unit == LargestUnit(epsilon=5.0, delta=0.0, records=4)
        assert vault.lookalikes() == Lookalikes(1, ("C07", "c 7"))
        added = vault.add([(["newer", "C05"], [0, 1], ["u", "user1"])])
        assert (added.new, added.unchanged) == (1, 1)
        assert vault.release(laplace(1.0), ids=["newer", *IDS[:20]]).released == 1
        assert vault.verify() == []
    with Vault.open(folder) as again:
        assert len(again) == 33


@pytest.mark.parametrize("number", [2, 3])
def test_a_statistic_of_an_older_vault_is_not_drawn_again(folder: Path, number: int) -> None:
    made_by_an_older_version(folder, number)
    plan, rows = StatisticPlan(DiscreteLaplace(400), 100, 3), np.arange(30).reshape(10, 3)
    with closing(sqlite3.connect(folder / "vault.sqlite")) as connection:
        ((stored,),) = connection.execute("SELECT vectors FROM statistics").fetchall()
    with Vault.open(folder) as vault:
        assert vault.release_statistic(plan, IDS[20:30], [rows]).values.tobytes() == stored
        assert vault.head() == HEADS[number]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DROP TRIGGER records_fixed; UPDATE records SET id = 'x' WHERE position = 3", "entry 2 were changed"),
        ("DROP TRIGGER records_fixed; UPDATE records SET unit = 'x' WHERE position = 3", "units .* were changed"),
        ("DROP TRIGGER records_stay; DELETE FROM records WHERE position = 3", "positions 0 and 65536 are damaged"),
        ("DROP TRIGGER records_stay; DELETE FROM records WHERE position = 31", "entry 4 are missing"),
        ("UPDATE records SET label = 2 WHERE position = 3", "positions 0 and 65536 are damaged"),
        ("DROP TRIGGER records_fixed; UPDATE records SET id = x'ff' WHERE position = 3", "0 and 65536 are damaged"),
        ("DROP TRIGGER records_fixed; UPDATE records SET unit = x'ff' WHERE position = 3", "0 and 65536 are damaged"),
        ("DROP INDEX records_by_id; INSERT INTO records VALUES (32, 'late', 1, 'é')", "occurs twice"),
    ],
)
def test_an_older_vault_that_is_damaged_is_left_as_it_is(folder: Path, change: str, message: str) -> None:
    made_by_an_older_version(folder, 1, change)
    before = (folder / "vault.sqlite").read_bytes()
    with pytest.raises(VaultError, match=message):
        Vault.open(folder)
    assert version_of(folder) == 1
    assert (folder / "vault.sqlite").read_bytes() == before


@pytest.mark.parametrize(
    ("ids", "message"),
    [("C00\0", "an id occurs twice"), ("C77\0", "the ids of the records added by ledger entry 2 were changed")],
)
def test_blocks_of_the_third_format_that_are_damaged_are_left_as_they_are(folder: Path, ids: str, message: str) -> None:
    change = f"UPDATE blocks SET ids = CAST(x'{b'C00'.hex()}00{ids.encode().hex()}' || substr(ids, 9) AS BLOB)"
    made_by_an_older_version(folder, 3, f"DROP TRIGGER blocks_fixed; {change}")
    before = (folder / "vault.sqlite").read_bytes()
    with pytest.raises(VaultError, match=message):
        Vault.open(folder)
    assert (folder / "vault.sqlite").read_bytes() == before


# A child of this process opens a copy of the vault and kills itself before a statement: the first, the third …
KILLED_AT_A_STATEMENT = """
import os, shutil, signal
from tpsl.mechanisms import laplace
from tpsl.vault import Vault, storage

connect, kill_at, sent = storage.connect, 0, 0

def before(statement):
    global sent
    sent += 1
    if sent == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

def traced(folder):
    connection = connect(folder)
    connection.execute("PRAGMA synchronous = OFF")  # what was written outlives a process without the disk
    connection.set_trace_callback(before)
    return connection

storage.connect = traced
seen, kills = set(), 0
for at in range(1, 1000, 2):
    place = f"{original}-{at}"
    shutil.copytree(original, place)
    child = os.fork()
    if not child:
        kill_at, sent = at, 0
        Vault.open(place)
        os._exit(0)
    killed = os.waitpid(child, 0)[1] == signal.SIGKILL
    with Vault.open(place) as vault:
        assert vault.verify() == []
        seen.add(vault.noisy_labels(laplace(1.0), [f"C{number:02}" for number in range(20)]).draws[0].tobytes())
    kills += killed
    if not killed:
        break
print(kills, len(seen))
"""


@pytest.mark.parametrize(("number", "at_least"), [(1, 15), (3, 5)])
def test_a_migration_that_is_killed_at_any_statement_happens_later(
    tmp_path: Path, fork: Callable[..., Any], number: int, at_least: int
) -> None:
    original = made_by_an_older_version(tmp_path / "vault", number)
    worker = fork(KILLED_AT_A_STATEMENT, tmp_path, original=str(original))
    assert worker.status(120) == 0, worker.stderr.read_text()
    kills, different = map(int, worker.stdout.read_text().split())
    assert kills > at_least
    assert different == 1


def test_who_comes_second_finds_it_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes find an older format, and both would migrate it."""
    made_by_an_older_version(folder, 1)
    first = migrating.migrate

    def overtaken(connection: sqlite3.Connection, path: Path) -> None:
        monkeypatch.setattr(migrating, "migrate", first)
        Vault.open(path).close()
        first(connection, path)

    monkeypatch.setattr(migrating, "migrate", overtaken)
    with Vault.open(folder) as vault:
        assert vault.verify() == []
