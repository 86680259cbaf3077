"""An encrypted vault: the disk tells nothing, and with the key it is a vault like any other."""

import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import laplace
from tpsl.vault import Vault, VaultError
from tpsl.vault.key import VARIABLE, Key, make_key_file, use_key
from tpsl.vault.place import vaults_in

NAMES = [f"person-{number}" for number in range(3000)]
LABELS = np.arange(3000) % 3 % 2
ONCE = laplace(1.0)


def make(folder: Path) -> Vault:
    """A vault of people, with households."""
    return Vault.create(folder, batches=[(NAMES, LABELS, [f"house-{n // 3}" for n in range(3000)])])


@pytest.fixture
def encrypted(folder: Path, key: Key) -> Iterator[Vault]:
    with make(folder) as vault:
        yield vault


def readable(content: bytes) -> list[bytes]:
    """What a file tells that has a vault's content in it."""
    words = (b"person-", b"house-", b"SQLite format", b"CREATE TABLE", b"ledger", b"created", b"laplace")
    return [word for word in words if word in content]


def test_no_byte_of_its_files_tells_anything(encrypted: Vault, tmp_path: Path) -> None:
    seen: dict[str, bytes] = {}

    def look(statement: str) -> None:
        seen.update((path.name, path.read_bytes()) for path in encrypted.path.iterdir())

    encrypted._connection.set_trace_callback(look)
    encrypted.release(ONCE)
    encrypted.add([(["person-late"], [1], ["house-1"])])
    encrypted._connection.set_trace_callback(None)
    encrypted.back_up(tmp_path / "copy")
    seen["copy"] = (tmp_path / "copy" / "vault.sqlite").read_bytes()
    assert set(seen) == {"vault.sqlite", "vault.sqlite-journal", "copy"}
    for name, content in seen.items():
        assert readable(content) == [], name
        assert name.endswith("journal") or len(zlib.compress(content)) > 0.99 * len(content), "it does not look random"


def test_a_plain_vault_tells_all_of_it_and_gets_nothing_from_whoever_has_a_key(
    folder: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "")
        with make(folder) as plain:
            plain.release(ONCE)
            assert not plain.encrypted
    assert len(readable((folder / "vault.sqlite").read_bytes())) == 7
    with Vault.open(folder) as plain:
        assert len(plain.noisy_labels(ONCE, NAMES).draws[0]) == 3000
        for write in (lambda: plain.release(ONCE), lambda: plain.add([(["late"], [1], ["house"])])):
            with pytest.raises(
                VaultError, match=f"is not encrypted, and a key is named; `tpsl vault encrypt {folder}`"
            ):
                write()


def test_it_is_a_vault_like_any_other(encrypted: Vault, folder: Path, tmp_path: Path) -> None:
    witness = tmp_path / "elsewhere" / "witness"
    encrypted.appoint_witness(witness)
    assert encrypted.release(ONCE).released == 3000
    given = encrypted.noisy_labels(ONCE, NAMES).draws[0]
    with Vault.open(folder) as again:
        assert again.encrypted
        assert (again.noisy_labels(ONCE, NAMES).draws[0] == given).all()
        assert again.verify() == []
        assert (again.true_labels_for_evaluation(NAMES) == LABELS).all()
        assert again.statement()["records"] == 3000
        assert readable(witness.read_bytes()) == []
        again.back_up(tmp_path / "copy")
    with Vault.open(tmp_path / "copy") as copy:
        assert (copy.encrypted, copy.verify(), copy.head()) == (True, [], encrypted.head())


def test_a_closed_vault_is_nobodys_free_place(
    encrypted: Vault, folder: Path, key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypted.close()
    before = (folder / "vault.sqlite").read_bytes()
    make_key_file(tmp_path / "other-key")
    for named, sentence in [
        ("", f"is encrypted, or is no vault: name its key file with {VARIABLE}=FILE, or with `vault_key`"),
        (str(tmp_path / "other-key"), f"the key file {tmp_path}/other-key does not open the vault {folder}"),
    ]:
        monkeypatch.setenv(VARIABLE, named)
        for attempt in (
            Vault.open,
            Vault.exists,
            Vault.create,
            Vault.require_free,
            lambda path: vaults_in(path.parent),
        ):
            with pytest.raises(VaultError, match=sentence):
                attempt(folder)
    assert (folder / "vault.sqlite").read_bytes() == before
    use_key(Key(b"five random words"))
    with pytest.raises(VaultError, match="the passphrase does not open the vault"):
        Vault.open(folder)
    use_key(key)
    Vault.open(folder).close()


def test_a_byte_that_was_changed_is_noticed(encrypted: Vault, folder: Path) -> None:
    encrypted.release(ONCE)
    encrypted.close()
    whole = (folder / "vault.sqlite").read_bytes()
    for offset in range(1000, len(whole), len(whole) // 12):
        changed = whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :]
        (folder / "vault.sqlite").write_bytes(changed)
        try:
            with Vault.open(folder) as vault:
                assert vault.verify() != []
        except VaultError as error:
            assert "overwritten" in str(error) or "damaged" in str(error)


@pytest.mark.usefixtures("plain_and_encrypted")
@pytest.mark.parametrize("opened_first_with", ["the wrong key", "no key"])
def test_whoever_opens_a_vault_after_a_crash_undoes_what_was_unfinished(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened_first_with: str
) -> None:
    crashed = tmp_path / "crashed"
    with make(folder) as vault:
        vault.release(ONCE)
        given, head = vault.noisy_labels(ONCE, NAMES).draws[0], vault.head()

        def crash(statement: str) -> None:
            if statement == "COMMIT":  # when the file has been changed in part, and its journal says what it was
                shutil.copytree(folder, crashed)

        vault._connection.execute("PRAGMA cache_size = 1")
        vault._connection.set_trace_callback(crash)
        vault.add([([f"person-late-{number}" for number in range(40_000)], np.zeros(40_000), ["house"] * 40_000)])
    assert (crashed / "vault.sqlite-journal").stat().st_size > 0
    make_key_file(tmp_path / "other-key")
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path / "other-key") if opened_first_with == "the wrong key" else "")
        try:
            Vault.open(crashed).close()
        except VaultError as error:
            assert "does not open" in str(error) or "is encrypted" in str(error)
    with Vault.open(crashed) as vault:
        assert (len(vault), vault.head(), vault.verify()) == (3000, head, [])
        assert (vault.noisy_labels(ONCE, NAMES).draws[0] == given).all()


def test_without_sqlcipher_the_sentence_says_what_to_install(
    encrypted: Vault, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypted.close()
    monkeypatch.setitem(sys.modules, "sqlcipher3", None)
    with pytest.raises(VaultError, match=r"an encrypted vault needs SQLCipher: `pip install 'tpsl\[encryption\]'"):
        Vault.open(folder)
