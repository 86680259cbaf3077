import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import laplace
from tpsl.vault import Vault, VaultBusy, VaultError, VaultFull


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_files_are_their_owners_only_from_the_first_moment(folder: Path) -> None:
    seen: set[int] = set()

    def look(done: int, total: int, note: str) -> None:
        seen.update(mode(path) for path in folder.iterdir())
        assert {path.name for path in folder.iterdir()} >= {"vault.sqlite-journal"}

    before = os.umask(0)  # the most generous user
    try:
        with Vault.create(folder, batches=[(np.arange(100), np.zeros(100), None)]) as vault:
            assert (mode(folder), mode(folder / "vault.sqlite")) == (0o700, 0o600)
            vault.release(laplace(1.0), progress=look)
    finally:
        os.umask(before)
    assert seen == {0o600}


def test_where_a_vault_can_be_created(folder: Path, tmp_path: Path) -> None:
    Vault.create(tmp_path / "deep" / "er" / "vault", apart="other people").close()
    folder.mkdir(mode=0o755)
    Vault.create(folder).close()
    assert mode(folder) == 0o700
    with pytest.raises(VaultError, match="has a label 'label' already"):
        Vault.create(folder, batches=[(["a"], [1], None)])
    assert len(Vault.open(folder)) == 0
    (tmp_path / "file").write_text("x")
    with pytest.raises(VaultError, match="is no folder"):
        Vault.create(tmp_path / "file", apart="other people")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("x")
    with pytest.raises(VaultError, match="is not empty"):
        Vault.create(tmp_path / "full", apart="other people")
    for classes in (1, 0, True, 2.0, 10**6):
        with pytest.raises(VaultError, match="classes"):
            Vault.create(tmp_path / "other", classes=classes, apart="other people")


def test_what_is_no_vault(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(VaultError, match="there is no vault at"):
        Vault.open(folder)
    assert not Vault.exists(folder)
    folder.mkdir()
    with pytest.raises(VaultError, match=r"has no file vault\.sqlite"):
        Vault.open(folder)
    file = folder / "vault.sqlite"
    file.write_text("this is a text of more than sixteen characters\n" * 100)
    for look in (Vault.open, Vault.exists):
        with pytest.raises(VaultError, match="is no vault"):
            look(folder)
    file.unlink()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE t (x)")
    for look in (Vault.open, Vault.create):
        with pytest.raises(VaultError, match="written by another program"):
            look(folder)
    assert file.exists()


# The second is a vault of the time before formats were counted anew, when the first had a row for each record.
@pytest.mark.parametrize("change", ["PRAGMA user_version = 4", "DROP TABLE blocks; CREATE TABLE records (id, label)"])
def test_a_vault_of_another_format_is_refused_and_stays_as_it_is(vault: Vault, folder: Path, change: str) -> None:
    vault.close()
    with closing(sqlite3.connect(folder / "vault.sqlite")) as connection:
        connection.executescript(change)
    before = (folder / "vault.sqlite").read_bytes()
    for look in (Vault.exists, Vault.open, Vault.create):  # what it has released is not forgotten
        with pytest.raises(
            VaultError, match="create the vault again from the files of its labels, and count what it has"
        ):
            look(folder)
    assert (folder / "vault.sqlite").read_bytes() == before


def test_a_truncated_database_is_told(vault: Vault, folder: Path) -> None:
    vault.close()
    file = folder / "vault.sqlite"
    whole = file.read_bytes()
    for length in (0, 10, 100, 4096, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        file.write_bytes(whole[:length])
        try:
            with Vault.open(folder) as opened:
                assert opened.verify() != []
        except VaultError as error:
            assert "truncated" in str(error) or "no vault" in str(error)


def test_an_interrupted_creation_is_taken_over(folder: Path, fork: Callable[..., Any], tmp_path: Path) -> None:
    code = (
        "import os, signal; from tpsl.vault import Vault\n"
        "def batches():\n"
        "    yield [str(i) for i in range(300000)], [0] * 300000, None\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Vault.create(place, batches=batches())"
    )
    assert fork(code, tmp_path, place=str(folder)).status(60) == -9
    assert not Vault.exists(folder)
    with pytest.raises(VaultError, match="creation is under way or was interrupted; create it again"):
        Vault.open(folder)
    with pytest.raises(VaultError, match="7 is not a label"):
        Vault.create(folder, batches=[(["a"], [7], None)])
    with Vault.create(folder, batches=[(["a"], [1], None)]) as vault:
        assert (len(vault), vault.verify()) == (1, [])
        assert Vault.exists(folder)


def test_a_creation_that_fails_leaves_alone_what_another_process_creates(
    folder: Path, fork: Callable[..., Any], tmp_path: Path
) -> None:
    code = (
        "import pathlib, time; from tpsl.vault import Vault\n"
        "def batches():\n"
        "    yield list(range(1000)), [0] * 1000, None\n"
        "    pathlib.Path('began').touch()\n"
        "    while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "    yield ['x'], ['no label'], None\n"
        "Vault.create(place, batches=batches())"
    )
    fails = fork(code, tmp_path, place=str(folder))
    while not (tmp_path / "began").exists():
        time.sleep(0.01)

    def batches() -> Iterator[tuple[list[int], list[int], None]]:
        for start in range(0, 1000, 100):
            time.sleep(0.05)  # the other process has time to remove its file
            yield list(range(start, start + 100)), [1] * 100, None

    with ThreadPoolExecutor(1) as pool:
        creates = pool.submit(lambda: Vault.create(folder, batches=batches()).close())
        time.sleep(0.3)  # it waits for the other process
        (tmp_path / "go").touch()
        creates.result(60)
    assert fails.status(60) != 0
    with Vault.open(folder) as vault:
        assert (len(vault), vault.verify()) == (1000, [])


def test_a_busy_vault_is_told(vault: Vault, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpsl.vault.storage._WAIT_SECONDS", 0.1)
    with Vault.open(folder) as second, closing(sqlite3.connect(folder / "vault.sqlite")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(VaultBusy, match="is busy: another process is writing"):
            second.release(laplace(1.0))
        assert len(second) == 1000
        assert second.knows([7]).all()  # reading goes on while another process prepares to write


def test_history_cannot_be_rewritten_by_a_careless_statement(vault: Vault, folder: Path) -> None:
    vault.release(laplace(1.0))
    with closing(sqlite3.connect(folder / "vault.sqlite")) as connection:
        for statement in (
            "UPDATE ledger SET body = ''",
            "DELETE FROM ledger",
            "UPDATE outcomes SET series = 1",
            "UPDATE outcomes SET outcomes = x''",
            "DELETE FROM outcomes",
            "DELETE FROM blocks",
            "UPDATE blocks SET ids = CAST('x' || substr(ids, 2) AS BLOB)",
            "UPDATE blocks SET chunk = 7",
        ):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(statement)


def test_a_full_disk_changes_nothing_and_the_same_call_works_when_there_is_space(folder: Path) -> None:
    with Vault.create(folder, batches=[(np.arange(50_000), np.arange(50_000) % 2, None)]) as vault:
        connection = vault._store.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(VaultFull, match="could not be written because the disk is full; nothing was changed"):
            vault.release(laplace(1.0))
        assert [entry.kind for entry in vault.ledger().entries] == ["created", "added"]
        connection.execute(f"PRAGMA max_page_count = {10 * pages}")
        assert vault.release(laplace(1.0)).released == 50_000


def test_a_vault_that_was_replaced_while_it_was_open_is_read_on_and_not_written(vault: Vault, folder: Path) -> None:
    copy = folder.with_name("copy")
    vault.back_up(copy)
    (copy / "vault.sqlite").replace(folder / "vault.sqlite")
    assert len(vault) == 1000
    with pytest.raises(VaultError, match="was replaced while it was open"):
        vault.release(laplace(1.0))
    with Vault.open(folder) as opened:
        assert [entry.kind for entry in opened.ledger().entries] == ["created", "added"]
        assert opened.release(laplace(1.0)).released == 1000


def test_whoever_opens_a_vault_after_a_crash_undoes_what_was_unfinished(vault: Vault, tmp_path: Path) -> None:
    vault.release(laplace(1.0))
    given, head, crashed = vault.noisy_labels(laplace(1.0), range(1000)).draws[0], vault.head(), tmp_path / "crashed"

    def crash(statement: str) -> None:
        if statement == "COMMIT":  # when the file has been changed in part, and its journal says what it was
            shutil.copytree(vault.path, crashed)

    vault._store.connection.execute("PRAGMA cache_size = 1")
    vault._store.connection.set_trace_callback(crash)
    vault.add([(np.arange(1000, 41_000), np.zeros(40_000), None)])
    assert (crashed / "vault.sqlite-journal").stat().st_size > 0
    with Vault.open(crashed) as opened:
        assert (len(opened), opened.head(), opened.verify()) == (1000, head, [])
        assert (opened.noisy_labels(laplace(1.0), range(1000)).draws[0] == given).all()


def test_a_copy_is_made_of_one_moment_and_for_its_owner_only(vault: Vault, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        vault.back_up(tmp_path / "deep" / "copy")
    finally:
        os.umask(before)
    copy = tmp_path / "deep" / "copy"
    assert (copy.stat().st_mode & 0o777, (copy / "vault.sqlite").stat().st_mode & 0o777) == (0o700, 0o600)
    vault.release(laplace(1.0))
    with Vault.open(copy) as opened:
        assert (len(opened), opened.verify(), len(opened.ledger().entries)) == (1000, [], 2)
        assert (opened.positions(np.arange(1000)) == np.arange(1000)).all()
    with pytest.raises(VaultError, match="copy exists and is not empty"):
        vault.back_up(copy)


# A child of this process kills itself after the first page of a copy, then after the second, and so on to the last.
KILLED_WHILE_COPYING = """
import os, signal, sqlite3
from tpsl.vault import Vault

def copy_pages(number):
    connect = sqlite3.connect

    class Killing(sqlite3.Connection):
        def backup(self, target):
            def look(status, left, total):
                if left and total - left == number:
                    os.kill(os.getpid(), signal.SIGKILL)

            super().backup(target, pages=1, progress=look)

    sqlite3.connect = lambda *place, **options: connect(*place, factory=Killing, **options)
    Vault.open(place).back_up(copy)

with Vault.open(place) as vault:
    head = vault.head()
    for number in range(1, 1000):
        child = os.fork()
        if not child:
            copy_pages(number)
            os._exit(0)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            break
        assert not Vault.exists(copy), "half a copy is none"
with Vault.open(copy) as copied:
    assert (copied.verify(), copied.head()) == ([], head)
print(number)
"""


def test_a_copy_that_was_killed_is_no_vault_and_the_same_command_makes_it(
    folder: Path, tmp_path: Path, fork: Callable[..., Any]
) -> None:
    Vault.create(folder, batches=[(np.arange(2000), np.arange(2000) % 2, None)]).close()
    worker = fork(KILLED_WHILE_COPYING, tmp_path, place=str(folder), copy=str(tmp_path / "copy"))
    assert worker.status(120) == 0, worker.stderr.read_text()
    assert int(worker.stdout.read_text()) > 5
    with Vault.open(folder) as vault, pytest.raises(VaultError, match="copy exists and is not empty"):
        vault.back_up(tmp_path / "copy")
    with Vault.open(tmp_path / "copy") as copied:
        assert len(copied) == 2000
