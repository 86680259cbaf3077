"""`verify` tells every change of a vault in a sentence: of records, releases, statistics and the ledger."""

import json
import re
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import DiscreteGaussian, DiscreteLaplace, laplace, randomized_response
from tpsl.vault import StatisticPlan, Vault, VaultError
from tpsl.vault.blocks import CHUNK
from tpsl.vault.ledger import hash_of
from tpsl.vault.texts import Texts


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vault with two additions, units, and three releases (entries 3, 4 and 6)."""
    folder = tmp_path_factory.mktemp("sound") / "vault"
    with Vault.create(folder, batches=[(np.arange(500), np.arange(500) % 2, np.arange(500) // 4)]) as vault:
        vault.release(laplace(1.0), ids=np.arange(0, 500, 2))
        vault.release(randomized_response(1.0), draws=2, compose=True)
        vault.add([(["late", "later"], [1, 0], ["u", "u"])])
        vault.release(randomized_response(1.0), draws=2)
        assert vault.verify() == []
    return folder


@pytest.fixture
def copied(sound: Path, folder: Path) -> Path:
    return shutil.copytree(sound, folder)


def tampered(folder: Path, change: Callable[[sqlite3.Connection], object], label: str | None = None) -> list[str]:
    """Change the vault's database behind its back and return what verify says."""
    with closing(sqlite3.connect(folder / "vault.sqlite", isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        change(connection)
    with Vault.open(folder if label is None else folder / label) as vault:
        return vault.verify()


def edit_entry(sequence: int, rehash: bool, **details: object) -> Callable[[sqlite3.Connection], None]:
    def change(connection: sqlite3.Connection) -> None:
        (body,) = connection.execute("SELECT body FROM ledger WHERE sequence = ?", (sequence,)).fetchone()
        read = json.loads(body)
        read["details"].update(details)
        body = json.dumps(read, sort_keys=True, separators=(",", ":"))
        connection.execute("UPDATE ledger SET body = ? WHERE sequence = ?", (body, sequence))
        if rehash:
            connection.execute("UPDATE ledger SET hash = ? WHERE sequence = ?", (hash_of(body), sequence))

    return change


def edit_outcomes(column: str, edit: Callable[[bytes], bytes], entry: int = 3) -> Callable[[sqlite3.Connection], None]:
    def change(connection: sqlite3.Connection) -> None:
        query = f"SELECT {column} FROM outcomes WHERE entry = ?"
        (blob,) = connection.execute(query, (entry,)).fetchone()
        connection.execute(f"UPDATE outcomes SET {column} = ? WHERE entry = ?", (edit(blob), entry))

    return change


def sql(statement: str) -> Callable[[sqlite3.Connection], object]:
    return lambda connection: connection.execute(statement)


def edit_records(edit: Callable[[list[str], list[int], list[str]], object]) -> Callable[[sqlite3.Connection], None]:
    """Change ids, labels and units of all records, which are in one block."""

    def change(connection: sqlite3.Connection) -> None:
        (stored,) = connection.execute("SELECT ids, labels, units FROM blocks").fetchall()
        ids, units = (Texts.from_bytes(stored[at]).to_list() for at in (0, 2))
        labels = list(stored[1])
        edit(ids, labels, units)
        columns = [len(labels), *(bytes(Texts.of(texts).to_bytes()) for texts in (ids, units)), bytes(labels)]
        connection.execute("UPDATE blocks SET records = ?, ids = ?, units = ?, labels = ?", columns)

    return change


def put(column: int, at: int, value: object) -> Callable[[sqlite3.Connection], None]:
    """Put another value into the column of ids (0), labels (1) or units (2)."""
    return edit_records(lambda *columns: columns[column].__setitem__(at, value))


def swap_ids(ids: list[str], labels: list[int], units: list[str]) -> None:
    ids[1], ids[3] = ids[3], ids[1]


def drop_the_last(*columns: list[object]) -> None:
    for column in columns:
        column.pop()


def smuggle_in(ids: list[str], labels: list[int], units: list[str]) -> None:
    ids.append("x"), labels.append(1), units.append("u")


def edit_covered(edit: Callable[[np.ndarray], object], entry: int = 3) -> Callable[[sqlite3.Connection], None]:
    """Change which positions a release covers."""

    def changed(packed: bytes) -> bytes:
        mask = np.zeros(CHUNK, bool)
        mask[np.cumsum(np.frombuffer(zlib.decompress(packed), "<u2").astype(int))] = True
        edit(mask)
        return zlib.compress(np.diff(np.flatnonzero(mask), prepend=0).astype("<u2").tobytes())

    return edit_outcomes("covered", changed, entry)


def set_at(places: list[int], values: list[int]) -> Callable[[np.ndarray], object]:
    return lambda mask: mask.__setitem__(places, values)


def release_twice(connection: sqlite3.Connection) -> None:
    """Have release 6 cover what the release before it in the series covers."""
    columns = connection.execute("SELECT covered, outcomes FROM outcomes WHERE entry = 4").fetchone()
    connection.execute("UPDATE outcomes SET (covered, outcomes) = (?, ?) WHERE entry = 6", columns)


CHANGES = {
    "ledger byte": (sql("UPDATE ledger SET body = replace(body, 'laplace', 'laplacE')"), "ledger entry 3 was changed"),
    "ledger hash": (sql("UPDATE ledger SET hash = 'ab' || substr(hash, 3)"), "ledger entry 2 does not follow"),
    "ledger unreadable": (
        sql("UPDATE ledger SET body = substr(body, 2) WHERE sequence = 2"),
        "ledger entry 2 is damaged",
    ),
    "ledger entry gone": (sql("DELETE FROM ledger WHERE sequence = 3"), "ledger entry 3 is missing"),
    "ledger first gone": (sql("UPDATE ledger SET sequence = 9 WHERE sequence = 6"), "ledger entry 6 is missing"),
    "ledger newest gone": (sql("DELETE FROM ledger WHERE sequence = 6"), "the ledger has no readable entry for them"),
    "epsilon lowered": (edit_entry(6, True, epsilon=0.1), "its ledger entry says epsilon 0.1"),
    "epsilon lowered in the middle": (edit_entry(4, True, epsilon=0.1), "ledger entry 5 does not follow"),
    "seed hidden": (edit_entry(6, True, seed=5), "release 6: its ledger entry says noise 'secure', but"),
    "another table": (
        edit_entry(6, True, table_digest="0" * 64),
        "release 6: its ledger entry says table_digest '0+', but discrete",
    ),
    "another mechanism": (edit_entry(6, True, mechanism={"mechanism": "magic"}), "release 6: .*'magic'"),
    "mechanism of other classes": (
        edit_entry(6, True, mechanism={"mechanism": "discrete", "epsilon": 1.0, "classes": 3}),
        "release 6: its mechanism .* is not for labels of 2 classes",
    ),
    "draws": (edit_entry(6, True, draws=1, epsilon=1.0), "release 6, chunk 0: .* another series"),
    "count": (edit_entry(6, True, records=3), "release 6: it covers 2 records, but its ledger entry says 3"),
    "outcome": (
        edit_outcomes("outcomes", lambda b: bytes([b[0] ^ 1]) + b[1:]),
        "release 3: its noisy labels were changed",
    ),
    "outcome not in table": (edit_outcomes("outcomes", lambda b: b"\xff\xff" + b[2:]), "outside the table of laplace"),
    "outcomes cut": (edit_outcomes("outcomes", lambda b: b[:-2]), "release 3, chunk 0: .* wrong length"),
    "outcomes gone": (sql("DELETE FROM outcomes WHERE entry = 3"), "release 3: it covers 0 records"),
    "covered moved": (edit_covered(set_at([0, 1], [0, 1])), "release 3: the ids of the records it covers"),
    "covered more": (edit_covered(set_at([1], [1])), "chunk 0: .* wrong length"),
    "covered beyond": (edit_covered(set_at([0, 60_000], [0, 1])), "covers positions that hold no record"),
    "covered less": (edit_covered(set_at([0], [0])), "chunk 0: .* wrong length"),
    "other series": (sql("UPDATE outcomes SET series = 3 WHERE entry = 6"), "with releases of another series"),
    "own series": (sql("UPDATE outcomes SET series = 6 WHERE entry = 6"), "with releases of another series"),
    "covered garbage": (edit_outcomes("covered", lambda b: b[::-1]), "chunk 0: .* is damaged"),
    "covered short": (edit_outcomes("covered", lambda b: zlib.compress(zlib.decompress(b)[:-1])), "is damaged"),
    "covered is text": (sql("UPDATE outcomes SET covered = 'x' WHERE entry = 3"), "chunk 0: .* is damaged"),
    "id": (put(0, 8, "forged"), "added by ledger entry 2 were changed"),
    "id of a later record": (put(0, 500, "x"), "ledger entry 5 were changed"),
    "ids swapped": (edit_records(swap_ids), "added by ledger entry 2 were changed"),
    "unit": (put(2, 8, "x"), "units of the records added by ledger entry 2"),
    "label": (put(1, 8, 2), r"label outside 0\.\.1, the first at position 8"),
    "labels are text": (sql("UPDATE blocks SET labels = 'one'"), "between positions 0 and 65536 are damaged"),
    "label gone": (sql("UPDATE blocks SET labels = substr(labels, 2)"), "between positions 0 and 65536 are damaged"),
    "id gone": (sql("UPDATE blocks SET ids = substr(ids, 3)"), "between positions 0 and 65536 are damaged"),
    "end of an id gone": (
        sql("UPDATE blocks SET ids = CAST(ids || x'41' AS BLOB)"),
        "between positions 0 and 65536 are damaged",
    ),
    "id is no text": (
        sql("UPDATE blocks SET ids = CAST(x'ff' || substr(ids, 2) AS BLOB)"),
        "ledger entry 2 were changed",
    ),
    "block elsewhere": (sql("UPDATE blocks SET chunk = 1"), "records are missing between positions 0 and 65536"),
    "block gone": (sql("DELETE FROM blocks"), "ledger entry 2 are missing from the vault"),
    "last record gone": (edit_records(drop_the_last), "ledger entry 5 are missing from the vault"),
    "record smuggled in": (edit_records(smuggle_in), "1 records .* no ledger entry added"),
    "index gone": (sql("DELETE FROM id_index"), "index of the record ids"),
    "index entry gone": (sql("UPDATE id_index SET entries = substr(entries, 9)"), "index of the record ids"),
    "index entry changed": (
        sql(
            "UPDATE id_index SET entries = CAST(substr(entries, 1, 16) || "
            "iif(substr(entries, 17, 1) = x'01', x'02', x'01') || substr(entries, 18) AS BLOB)"
        ),
        "index of the record ids",
    ),
    "index entry cut": (sql("UPDATE id_index SET entries = substr(entries, 2)"), "index of the record ids"),
    "released twice": (release_twice, "have two noisy labels of the same series"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_anywhere_is_told_in_a_sentence(copied: Path, name: str) -> None:
    change, message = CHANGES[name]
    problems = tampered(copied, change)
    assert any(re.search(message, problem) for problem in problems), problems
    assert all("\n" not in problem and len(problem) > 20 for problem in problems)


def test_permissions_are_part_of_being_sound(copied: Path) -> None:
    with Vault.open(copied) as vault:
        (copied / "vault.sqlite").chmod(0o640)
        assert "can be read by others (mode 640)" in vault.verify()[0]
        (copied / "vault.sqlite").chmod(0o600)
        copied.chmod(0o755)
        assert "mode 755" in vault.verify()[0]
        copied.chmod(0o770)
        assert f"{copied} can be changed by others (mode 770)" in vault.verify()[0]


def test_a_flipped_byte_anywhere_never_ends_in_a_traceback(sound: Path, folder: Path) -> None:
    whole = (sound / "vault.sqlite").read_bytes()
    shutil.copytree(sound, folder)
    told = 0
    used = np.flatnonzero(np.frombuffer(whole, np.uint8))
    for offset in np.random.default_rng(0).choice(used, 40, replace=False).tolist():
        (folder / "vault.sqlite").write_bytes(
            whole[:offset] + bytes([whole[offset] ^ (1 + offset % 255)]) + whole[offset + 1 :]
        )
        try:
            with Vault.open(folder) as vault:
                told += bool(vault.verify())
        except VaultError:
            told += 1
    assert told > 30  # the rest fell on labels, and on what SQLite does not need


def test_a_flipped_byte_of_every_stored_outcome_is_noticed(sound: Path, folder: Path) -> None:
    shutil.copytree(sound, folder)
    whole = (sound / "vault.sqlite").read_bytes()
    with closing(sqlite3.connect(sound / "vault.sqlite")) as connection:
        (blob,) = connection.execute("SELECT outcomes FROM outcomes WHERE entry = 3").fetchone()
        (body,) = connection.execute("SELECT body FROM ledger WHERE sequence = 4").fetchone()
    for piece in (blob, body.encode()):
        assert whole.count(piece) == 1
        start = whole.index(piece)
        for offset in range(start, start + len(piece), max(1, len(piece) // 10)):
            (folder / "vault.sqlite").write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
            with Vault.open(folder) as vault:
                assert vault.verify() != []


def test_progress_is_told(copied: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    with Vault.open(copied) as vault:
        vault.verify(progress=lambda *step: steps.append(step))
    assert steps == [(502, 502, "checking records")]


IDS, ROWS = np.arange(500), np.arange(1500).reshape(500, 3) % 50
GAUSSIAN = StatisticPlan(DiscreteGaussian(10**8, 1e-6), 100, 3)
PURE = StatisticPlan(DiscreteLaplace(1000), 100, 3)


@pytest.fixture(scope="module")
def with_statistics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vault with a release of noisy labels and two statistics (entries 3, 4 and 5)."""
    folder = tmp_path_factory.mktemp("statistics") / "vault"
    with Vault.create(folder, batches=[(IDS, IDS % 2, None)], apart="others") as vault:
        vault.release(laplace(1.0), ids=IDS[:100])
        vault.release_statistic(GAUSSIAN, IDS[100:300], [ROWS[100:300]])
        vault.release_statistic(PURE, IDS[300:], [ROWS[300:]])
        assert vault.verify() == []
    return folder


STATISTIC_CHANGES = {
    "numbers": (sql("UPDATE statistics SET vectors = zeroblob(24) WHERE entry = 4"), "its noisy statistic was changed"),
    "fewer numbers": (sql("UPDATE statistics SET vectors = zeroblob(16) WHERE entry = 4"), "release 4: .*wrong length"),
    "no numbers": (
        sql("DELETE FROM statistics WHERE entry = 5"),
        "release 5: the numbers of its statistic are missing",
    ),
    "no numbers at all": (sql("DELETE FROM statistics"), "release 4: the numbers of its statistic are missing"),
    "numbers of nothing": (sql("INSERT INTO statistics VALUES (9, x'00')"), "release 9: .*without a ledger entry"),
    "epsilon lowered": (
        edit_entry(5, True, epsilon=0.01),
        "says epsilon 0.01, but discrete Laplace noise, scale 1,000 has 0.1",
    ),
    "rho lowered": (edit_entry(4, True, rho="1/1000000"), "release 4: its ledger entry says rho '1/1000000', but"),
    "rho without meaning": (edit_entry(4, True, rho="1/0"), "ledger entry 4 is damaged"),
    "bound lowered": (edit_entry(5, True, bound=10), "release 5: its ledger entry says epsilon 0.1, but"),
    "no bound": (edit_entry(5, True, bound=0), "release 5: the bound of a statistic must be"),
    "other noise": (
        edit_entry(5, True, mechanism={"noise": "magic"}),
        "release 5: unknown noise for a statistic 'magic'",
    ),
    "classes": (edit_entry(5, True, classes=3, epsilon=0.2), "release 5: its ledger entry speaks of 3 classes"),
    "seed hidden": (edit_entry(5, True, seed=5), "release 5: its ledger entry says noise 'secure', but"),
    "count": (edit_entry(5, True, records=3), "release 5: it covers 200 records, but its ledger entry says 3"),
    "coverage gone": (sql("DELETE FROM outcomes WHERE entry = 4"), "release 4: it covers 0 records"),
    "other records": (
        sql("UPDATE outcomes SET covered = (SELECT covered FROM outcomes WHERE entry = 5) WHERE entry = 4"),
        "release 4: the ids of the records it covers are not those",
    ),
    "outcomes": (sql("UPDATE outcomes SET outcomes = x'00' WHERE entry = 4"), "but the release is a statistic"),
}


@pytest.mark.parametrize("name", STATISTIC_CHANGES)
def test_a_change_of_a_statistic_is_told_in_a_sentence(with_statistics: Path, folder: Path, name: str) -> None:
    change, message = STATISTIC_CHANGES[name]
    problems = tampered(shutil.copytree(with_statistics, folder), change)
    assert any(re.search(message, problem) for problem in problems), problems
    assert all("\n" not in problem and len(problem) > 20 for problem in problems)


def test_what_was_released_is_never_overwritten(with_statistics: Path, folder: Path) -> None:
    shutil.copytree(with_statistics, folder)
    with closing(sqlite3.connect(folder / "vault.sqlite")) as connection:
        for statement in ("DELETE FROM statistics", "UPDATE statistics SET vectors = x'00'"):
            with pytest.raises(sqlite3.IntegrityError, match="statistics: no"):
                connection.execute(statement)


def test_verification_says_that_the_noise_of_statistics_needs_their_vectors(
    with_statistics: Path, vault: Vault
) -> None:
    assert not any("statistic" in sentence for sentence in vault.cannot_see())
    with Vault.open(with_statistics) as opened:
        assert any("the noise of statistics was not tested" in sentence for sentence in opened.cannot_see())
        assert opened.statistic_problems(PURE, IDS[300:], [ROWS[300:]]) == []


def test_statistics_of_several_labels_are_sound(with_statistics: Path, folder: Path) -> None:
    shutil.copytree(with_statistics, folder)
    with Vault.create(folder / "second", classes=3, batches=[(IDS, IDS % 3, None)]) as vault:
        vault.release_statistic(PURE, IDS, [ROWS])
        assert vault.verify() == []
        sequence = len(vault.ledger().entries)
    (problem,) = tampered(folder, sql(f"DELETE FROM statistics WHERE entry = {sequence}"), "second")
    assert problem == f"release {sequence}: the numbers of its statistic are missing"
