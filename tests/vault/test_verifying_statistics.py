"""What verification finds in the statistics of a vault."""

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import DiscreteGaussian, DiscreteLaplace, laplace
from tpsl.vault import StatisticPlan, Vault
from tpsl.vault.ledger import hash_of

IDS, ROWS = np.arange(500), np.arange(1500).reshape(500, 3) % 50
GAUSSIAN = StatisticPlan(DiscreteGaussian(10**8, 1e-6), 100, 3)
PURE = StatisticPlan(DiscreteLaplace(1000), 100, 3)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vault with a release of noisy labels and two statistics (entries 3, 4 and 5)."""
    folder = tmp_path_factory.mktemp("sound") / "vault"
    with Vault.create(folder, batches=[(IDS, IDS % 2, None)]) as vault:
        vault.release(laplace(1.0), ids=IDS[:100])
        vault.release_statistic(GAUSSIAN, IDS[100:300], [ROWS[100:300]])
        vault.release_statistic(PURE, IDS[300:], [ROWS[300:]])
        assert vault.verify() == []
    return folder


def edit_entry(sequence: int, **details: object) -> Callable[[sqlite3.Connection], None]:
    """Change a ledger entry and its hash; those after it do not follow any more."""

    def change(connection: sqlite3.Connection) -> None:
        (body,) = connection.execute("SELECT body FROM ledger WHERE sequence = ?", (sequence,)).fetchone()
        read = json.loads(body)
        read["details"].update(details)
        body = json.dumps(read, sort_keys=True, separators=(",", ":"))
        connection.execute("UPDATE ledger SET body = ?, hash = ? WHERE sequence = ?", (body, hash_of(body), sequence))

    return change


def sql(statement: str) -> Callable[[sqlite3.Connection], object]:
    return lambda connection: connection.execute(statement)


CHANGES = {
    "numbers": (sql("UPDATE statistics SET vectors = zeroblob(24) WHERE entry = 4"), "its noisy statistic was changed"),
    "fewer numbers": (sql("UPDATE statistics SET vectors = zeroblob(16) WHERE entry = 4"), "release 4: .*wrong length"),
    "no numbers": (
        sql("DELETE FROM statistics WHERE entry = 5"),
        "release 5: the numbers of its statistic are missing",
    ),
    "no numbers at all": (sql("DELETE FROM statistics"), "release 4: the numbers of its statistic are missing"),
    "numbers of nothing": (sql("INSERT INTO statistics VALUES (9, x'00')"), "release 9: .*without a ledger entry"),
    "epsilon lowered": (
        edit_entry(5, epsilon=0.01),
        "says epsilon 0.01, but discrete Laplace noise, scale 1,000 has 0.1",
    ),
    "rho lowered": (edit_entry(4, rho="1/1000000"), "release 4: its ledger entry says rho '1/1000000', but"),
    "rho without meaning": (edit_entry(4, rho="1/0"), "ledger entry 4 is damaged"),
    "bound lowered": (edit_entry(5, bound=10), "release 5: its ledger entry says epsilon 0.1, but"),
    "no bound": (edit_entry(5, bound=0), "release 5: the bound of a statistic must be"),
    "other noise": (edit_entry(5, mechanism={"noise": "magic"}), "release 5: unknown noise for a statistic 'magic'"),
    "classes": (edit_entry(5, classes=3, epsilon=0.2), "release 5: .*wrong length"),
    "seed hidden": (edit_entry(5, seed=5), "release 5: its ledger entry says noise 'secure', but"),
    "count": (edit_entry(5, records=3), "release 5 covers 200 records, but its ledger entry says 3"),
    "coverage gone": (sql("DELETE FROM outcomes WHERE series = 4"), "release 4 covers 0 records"),
    "other records": (
        sql(
            "UPDATE outcomes SET (covered, records) = "
            "(SELECT covered, records FROM outcomes WHERE series = 5) WHERE series = 4"
        ),
        "release 4: the ids of the records it covers are not those",
    ),
    "outcomes": (sql("UPDATE outcomes SET outcomes = x'00' WHERE series = 4"), "but the release is a statistic"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_statistic_is_told_in_a_sentence(sound: Path, folder: Path, name: str) -> None:
    change, message = CHANGES[name]
    shutil.copytree(sound, folder)
    with closing(sqlite3.connect(folder / "vault.sqlite", isolation_level=None)) as connection:
        for trigger in ("ledger_fixed", "outcomes_stay", "outcomes_fixed", "statistics_stay", "statistics_fixed"):
            connection.execute(f"DROP TRIGGER {trigger}")
        change(connection)
    with Vault.open(folder) as vault:
        problems = vault.verify()
    assert any(re.search(message, problem) for problem in problems), problems
    assert all("\n" not in problem and len(problem) > 20 for problem in problems)


def test_what_was_released_is_never_overwritten(sound: Path, folder: Path) -> None:
    shutil.copytree(sound, folder)
    with closing(sqlite3.connect(folder / "vault.sqlite")) as connection:
        for statement in ("DELETE FROM statistics", "UPDATE statistics SET vectors = x'00'"):
            with pytest.raises(sqlite3.IntegrityError, match="releases"):
                connection.execute(statement)


def test_verification_says_that_the_noise_of_statistics_needs_their_vectors(sound: Path, vault: Vault) -> None:
    assert not any("statistic" in sentence for sentence in vault.cannot_see())
    with Vault.open(sound) as opened:
        assert any("the noise of statistics was not tested" in sentence for sentence in opened.cannot_see())
        assert opened.statistic_problems(PURE, IDS[300:], [ROWS[300:]]) == []
