"""A vault gets a key, another one, or none any more: its content stays, whatever is killed, and no write is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import laplace
from tpsl.vault import Incoming, LabelTable, Vault, VaultBusy, VaultError, encrypting
from tpsl.vault.encrypting import change_key
from tpsl.vault.key import VARIABLE, Key, make_key_file, read_key_file, use_key

ONCE, ALL = laplace(1.0), range(1000)


def test_a_vault_keeps_what_it_has_under_every_key(
    vault: Vault, folder: Path, key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "")
        vault.release(ONCE)
    given, facts = vault.noisy_labels(ONCE, ALL).draws[0], vault.statement()
    vault.close()
    make_key_file(tmp_path / "second")
    for new in (key, read_key_file(tmp_path / "second"), Key(b"f\xc3\xbcnf 'Zufalls'-W\xc3\xb6rter"), key, None):
        change_key(folder, new)
        if new is not None:
            use_key(new)
        assert [path.name for path in folder.iterdir()] == ["vault.sqlite"]
        assert (folder / "vault.sqlite").stat().st_mode & 0o777 == 0o600
        with Vault.open(folder) as opened:
            assert opened.encrypted == (new is not None)
            assert opened.verify() == []
            assert (opened.noisy_labels(ONCE, ALL).draws[0] == given).all()
            assert opened.statement() == facts


def test_the_old_key_does_not_open_it_any_more(vault: Vault, folder: Path, key: Key) -> None:
    vault.close()
    change_key(folder, key)
    change_key(folder, Key(b"five random words"))
    with pytest.raises(VaultError, match=f"{key} does not open the vault {folder}"):
        Vault.open(folder)


def test_who_had_it_open_reads_on_and_is_refused_the_next_write(
    vault: Vault, folder: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_key(folder, key)
    assert len(vault) == 1000
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "")
        with pytest.raises(VaultError, match="was replaced while it was open"):
            vault.release(ONCE)
    with Vault.open(folder) as opened:
        assert [entry.kind for entry in opened.ledger().entries] == ["created", "added"]
        assert opened.release(ONCE).released == 1000


def test_a_vault_that_is_written_waits_and_one_that_was_replaced_meanwhile_is_left_alone(
    vault: Vault, folder: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpsl.vault.database._WAIT_SECONDS", 0.05)
    with Vault.open(folder) as writing:
        writing._connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(VaultError, match="is busy"):
            change_key(folder, key)
    opened = encrypting._opened

    def opened_late(file: Path, with_key: Key | None) -> Any:
        monkeypatch.setattr(encrypting, "_opened", opened)
        change_key(folder, key)  # as another process would
        return opened(file, with_key or key)

    monkeypatch.setattr(encrypting, "_opened", opened_late)
    with pytest.raises(VaultError, match="was given another key at the same time"):
        change_key(folder, Key(b"five random words"))
    with Vault.open(folder) as found:
        assert (found.encrypted, found.verify()) == (True, [])


def test_a_copy_that_is_not_the_same_changes_nothing(
    vault: Vault, folder: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = encrypting._copy

    def copy_badly(file: Path, draft: Path, old: Key | None, new: Key | None) -> None:
        copy(file, draft, old, new)
        written = encrypting._opened(draft, new)
        written.execute("UPDATE blocks SET labels = zeroblob(1000)")
        written.close()

    monkeypatch.setattr(encrypting, "_copy", copy_badly)
    with pytest.raises(VaultError, match="not like the old one; nothing was changed"):
        change_key(folder, key)
    assert [path.name for path in folder.iterdir()] == ["vault.sqlite"]
    assert (vault.encrypted, vault.verify()) == (False, [])


# A child of this process kills itself before the next line of the code that replaces the file, then the one after it.
KILLED_AT_EACH_LINE = """
import os, signal, sys
from pathlib import Path
import tpsl.files
from tpsl.vault import Vault, VaultError, encrypting, storage
from tpsl.vault.key import VARIABLE, named_key

def replaces(code):
    return code.co_filename in (encrypting.__file__, tpsl.files.__file__) or code in locking

locking = [function.__wrapped__.__code__ for function in (storage.replacing, storage._locked)]

def change(kill_at, new):
    passed = set()

    def line(frame, event, argument):
        passed.add((frame.f_code.co_filename, frame.f_lineno))
        if len(passed) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return line

    sys.settrace(lambda frame, event, argument: line if replaces(frame.f_code) else None)
    encrypting.change_key(Path(place), new)

def drafts():
    return [path.name for path in Path(place).iterdir() if path.is_file() and path.name != "vault.sqlite"]

heads = set()
for new in (named_key(), None):
    encrypted, left = [], set()
    for kill_at in range(1, 1000):
        child = os.fork()
        if not child:
            change(kill_at, new)
            os._exit(0)
        killed = os.waitpid(child, 0)[1] == signal.SIGKILL
        left |= set(drafts())
        file = os.environ.pop(VARIABLE)
        try:
            Vault.open(place).close()
        except VaultError:
            pass
        assert drafts() == [], "who has no key clears up too"
        os.environ[VARIABLE] = file
        with Vault.open(place) as vault:
            heads.add(vault.head())
            encrypted.append(vault.encrypted)
            assert vault.verify() == []
        if not killed:
            break
    assert left == {".vault.sqlite.new"}, left
    print(kill_at, encrypted.count(new is None))
print(len(heads), *(path.name for path in Path(place).iterdir()))
"""


def test_a_kill_at_any_line_leaves_the_vault_with_its_old_key_or_with_the_new_one(
    folder: Path, key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: Callable[..., Any]
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "")
        Vault.create(folder, batches=[(np.arange(100), np.arange(100) % 2, None)]).close()
    worker = fork(KILLED_AT_EACH_LINE, tmp_path, place=str(folder))
    assert worker.status(240) == 0, worker.stderr.read_text()
    to_encrypt, to_decrypt, (heads, *files) = map(str.split, worker.stdout.read_text().splitlines())
    assert (heads, files) == ("1", ["vault.sqlite"])
    for lines, with_the_old_key in (to_encrypt, to_decrypt):
        assert 20 < int(with_the_old_key) < int(lines)


def test_what_was_read_of_files_does_not_outlive_the_key(
    vault: Vault, folder: Path, key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "more.csv").write_text("id,label\nperson,1\n")
    table = LabelTable(path=tmp_path / "more.csv", id="id", label="label")
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "")
        with Incoming(folder, 2, [table]) as incoming:
            incoming.read()
            with pytest.raises(VaultBusy, match="another command is reading files"):
                change_key(folder, key)
    assert any(b"person" in path.read_bytes() for path in (folder / "incoming").iterdir())
    change_key(folder, key)
    assert [path.name for path in folder.iterdir()] == ["vault.sqlite"]
