"""`tpsl vault new-key`, `encrypt` and `decrypt`, and what other commands say of a vault that is encrypted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tpsl.training.run_folder import RunFolder
from tpsl.vault import Vault
from tpsl.vault.key import VARIABLE


@pytest.fixture
def key(tpsl: Any, tmp_path: Path) -> Path:
    made = tpsl("vault", "new-key", tmp_path / "vault.key")
    assert f"export {VARIABLE}={tmp_path}/vault.key\n" in made.stdout
    assert "keep a copy elsewhere" in made.stdout
    return tmp_path / "vault.key"


@pytest.fixture
def vault(tpsl: Any, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An encrypted vault; the key is not named any more."""
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"person-{row},{row % 2}\n" for row in range(40)))
    tpsl("vault", "create", tmp_path / "vault", tmp_path / "labels.csv", "--key-file", key, "--json").json()
    monkeypatch.setenv(VARIABLE, "")
    return tmp_path / "vault"


def test_an_encrypted_vault_is_used_with_its_key(
    tpsl: Any, vault: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert b"person" not in (vault / "vault.sqlite").read_bytes()
    release = ("vault", "release", vault, "--mechanism", "discrete", "--epsilon", 1)
    closed = f"error: {vault} is encrypted, or is no vault: name its key file with {VARIABLE}=FILE"
    for command in (release, ("vault", "ledger", vault), ("vault", "verify", vault)):
        assert closed in tpsl(*command).error()
    assert "which key?" in tpsl("vault", "encrypt", vault).error()
    monkeypatch.setenv(VARIABLE, str(key))
    assert tpsl(*release, "--json").json()["released"] == 40
    verified = tpsl("vault", "verify", vault, "--json").json()
    assert (verified["sound"], verified["encrypted"]) == (True, True)


def test_a_key_is_changed_and_taken_off(
    tpsl: Any, vault: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(key))
    tpsl("vault", "new-key", tmp_path / "second.key")
    changed = tpsl("vault", "encrypt", vault, "--key-file", tmp_path / "second.key")
    assert f"export {VARIABLE}={tmp_path}/second.key\n" in changed.stdout
    assert f"{key} does not open the vault" in tpsl("vault", "ledger", vault).error()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "second.key"))
    assert tpsl("vault", "decrypt", vault, "--json").json() == {"vault": str(vault), "encrypted": False}
    assert b"person" in (vault / "vault.sqlite").read_bytes()
    assert tpsl("vault", "encrypt", vault, "--json").json()["encrypted"], "with the key that is named"
    assert b"person" not in (vault / "vault.sqlite").read_bytes()
    assert "one key" in tpsl("vault", "encrypt", vault, "--passphrase", "--key-file", key).stderr
    assert "typed on a terminal" in tpsl("vault", "encrypt", vault, "--passphrase").error()


def test_a_run_makes_no_second_vault_beside_one_that_it_cannot_open(
    tpsl: Any, small_job: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "with-key.yaml"
    local.write_text(f"party: label\nvault_key: {key.name}\n")
    trained = tpsl("train", small_job, "--local", local, "--out", tmp_path / "run")
    assert trained.status == 0, trained.stderr
    assert os.environ[VARIABLE] == str(key), "for the processes that it starts"
    place = RunFolder(tmp_path / "run").vault()
    with Vault.open(place) as vault:
        assert (vault.encrypted, vault.verify()) == (True, [])
        head = vault.head()
    monkeypatch.setenv(VARIABLE, "")
    assert f"{place} is encrypted" in tpsl("train", small_job, "--out", tmp_path / "again").error()
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    page = tpsl("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert page.status == 0 and f"{place.name}: is locked, and its key is not at hand" in page.stderr.replace("\n", "")
    again = tpsl("train", small_job, "--set", f"local.vault_key={key}", "--out", tmp_path / "again")
    assert again.status == 0, again.stderr
    with Vault.open(place) as vault:
        assert vault.head() == head, "nothing was drawn again"
