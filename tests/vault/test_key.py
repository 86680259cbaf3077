"""The key of encrypted vaults: what is taken for one, who has it, and what is said of a vault that stays closed."""

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.vault import Vault, VaultError
from tpsl.vault import key as keys
from tpsl.vault.key import VARIABLE, Key, make_key_file, named_key, read_key_file, type_new_passphrase, use_key


def test_a_new_key_is_random_and_its_owners_only(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    for file in files:
        make_key_file(file)
        assert (file.stat().st_mode & 0o777, file.stat().st_size) == (0o600, 32)
    one, two = (read_key_file(file) for file in files)
    assert one.secret != two.secret
    with pytest.raises(VaultError, match=r"no key file can be made at .*one \(File exists\)"):
        make_key_file(files[0])
    assert read_key_file(files[0]) == one


def test_what_is_no_key_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with pytest.raises(VaultError, match=r"the key file .*key cannot be read \(No such file"):
        read_key_file(file)
    make_key_file(file)
    file.chmod(0o640)
    with pytest.raises(VaultError, match=f"can be read by others.*chmod 600 {file}"):
        read_key_file(file)
    for content in (b"secret\n", b"", bytes(1 << 20)):
        file.write_bytes(content)
        file.chmod(0o600)
        with pytest.raises(VaultError, match=r"is no key file: it has .* bytes"):
            read_key_file(file)


def test_no_message_shows_a_key(key: Key) -> None:
    assert key.secret.hex() not in f"{key} {key!r}"
    assert str(key) == f"the key file {key.file}"
    assert "five random words" not in f"{Key(b'five random words')} {Key(b'five random words')!r}"


def test_a_process_has_one_key(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named_key() == key
    use_key(Key(b"five random words"))
    assert named_key() == Key(b"five random words")
    assert VARIABLE not in os.environ
    use_key(key)
    assert named_key() == key, "what is named comes before what was typed"
    monkeypatch.setenv(VARIABLE, str(key.file) + "-lost")
    with pytest.raises(VaultError, match="-lost cannot be read"):
        named_key()


def test_keys_for_other_purposes_are_others(key: Key) -> None:
    found = {key.derived("one"), key.derived("two"), Key(b"five random words").derived("one")}
    assert len(found) == 3
    assert all(key.secret not in made and len(made) == 32 for made in found)


def test_a_passphrase_is_typed_on_a_terminal_or_not_at_all() -> None:
    with pytest.raises(VaultError, match="there is none here; use a key file"):
        type_new_passphrase()


AT_A_TERMINAL = """
import os, sys
from tpsl.vault import Vault, VaultError
from tpsl.vault import key as keys

os.setsid()
os.dup2(os.open(terminal, os.O_RDWR), 0)
sys.stdin = open(0)

def attempt(work):
    try:
        print(work(), flush=True)
    except VaultError as error:
        print("refused:", error, flush=True)

attempt(lambda: len(Vault.open(place)))
for _ in range(2):
    attempt(lambda: len(Vault.open(place)))
for _ in range(3):
    attempt(keys.type_new_passphrase)
"""
TYPED = [
    "a wrong one",
    unicodedata.normalize("NFD", "fünf zufällige Wörter"),  # as some terminals write it
    "short",
    "long enough, is it",
    "long enough, it is",
    *["good and long"] * 2,
]


def test_a_passphrase_is_asked_for_once_and_not_shown(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: Callable[..., Any]
) -> None:
    monkeypatch.setattr(keys, "_typed", Key("fünf zufällige Wörter".encode()))
    Vault.create(folder, batches=[(np.arange(5), np.zeros(5), None)]).close()
    ours, theirs = os.openpty()
    process = fork(AT_A_TERMINAL, tmp_path, place=str(folder), terminal=os.ttyname(theirs))
    shown = ""
    for typed in TYPED:
        while not shown.endswith(": "):
            shown += os.read(ours, 1024).decode()
        os.write(ours, typed.encode() + b"\n")
        shown += os.read(ours, 1024).decode()
    assert process.status(60) == 0, process.stderr.read_text()
    asked = [f"passphrase of the vault {folder}: "] * 2 + ["new passphrase: "]
    asked += ["new passphrase: ", "the same again: "] * 2
    assert shown.replace("\r", "").splitlines() == asked
    assert process.stdout.read_text().splitlines() == [
        f"refused: the passphrase does not open the vault {folder}; if that has a key file, name it: {VARIABLE}",
        "5",
        "5",
        "refused: a passphrase has at least 12 characters; five random words are a good one",
        "refused: the two passphrases differ; nothing was changed",
        "the passphrase",
    ]
    os.close(ours)
    os.close(theirs)
