"""What the chain can show, and that nothing depends on the clock."""

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import laplace
from tpsl.vault import Vault, VaultError, ledger

HOURS = [f"2026-11-15T{hour:02}:00:00.000Z" for hour in (9, 10, 8, 7, 12)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the machine's clock says at each entry of a ledger, the next one first; it goes back twice."""
    hours = list(HOURS)
    monkeypatch.setattr(ledger, "now", lambda: hours.pop(0))
    return hours


def test_a_clock_that_is_set_back_changes_nothing_but_a_remark(folder: Path, clock: list[str]) -> None:
    with Vault.create(folder, batches=[(range(100), [0, 1] * 50, None)]) as vault:
        vault.release(laplace(1.0), ids=range(40))
        given = vault.noisy_labels(laplace(1.0), range(40)).draws[0]
        vault.release(laplace(1.0), ids=range(70))
        assert (vault.noisy_labels(laplace(1.0), range(40)).draws[0] == given).all()
        with pytest.raises(KeyboardInterrupt):
            vault.release(laplace(1.0), progress=_interrupt)
    clock.insert(0, "1970-01-01T00:00:00.000Z")
    with Vault.open(folder) as vault:  # as after a restart
        assert vault.release(laplace(1.0)).released == 30
        assert (vault.noisy_labels(laplace(1.0), range(40)).draws[0] == given).all()
        found = vault.ledger()
        assert [entry.time for entry in found.entries] == [*HOURS[:4], "1970-01-01T00:00:00.000Z"]
        assert [entry.sequence for entry in found.entries] == [1, 2, 3, 4, 5]
        assert (found.epsilon_per_record, found.released_records) == (1.0, 100)
        assert vault.verify() == []


def _interrupt(done: int, total: int, note: str) -> None:
    raise KeyboardInterrupt


def test_a_noted_hash_shows_what_a_sound_chain_alone_does_not(
    vault: Vault, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = [vault.ledger().head]
    shutil.copytree(folder, tmp_path / "old")
    vault.release(laplace(1.0), ids=np.arange(500))
    notes.append(vault.ledger().head)
    vault.release(laplace(1.0))
    notes.append(vault.ledger().head)
    assert [vault.entries_since(note) for note in notes] == [2, 1, 0]
    monkeypatch.setenv("TPSL_HOME", str(tmp_path / "elsewhere"))  # where nobody knows that it is a copy
    with Vault.open(tmp_path / "old") as old:
        old.release(laplace(1.0))
        assert old.verify() == []  # a sound chain, and yet everything was drawn again
        assert [old.entries_since(note) for note in notes] == [1, None, None]
    for text in ("", "abc", notes[0].upper(), notes[0] + "0"):
        with pytest.raises(VaultError, match="64 hexadecimal digits"):
            vault.entries_since(text)


def test_a_hash_tells_nothing_of_an_entry_to_somebody_who_guesses_the_rest(vault: Vault, folder: Path) -> None:
    """How many labels changed is a small number: without a random part all of them could be tried."""
    connection = sqlite3.connect(folder / "vault.sqlite")
    bodies = [body for (body,) in connection.execute("SELECT body FROM ledger ORDER BY sequence")]
    connection.close()
    nonces = [json.loads(body)["nonce"] for body in bodies]
    assert [len(bytes.fromhex(nonce)) for nonce in nonces] == [16, 16]
    assert len(set(nonces)) == 2


def test_an_entry_of_a_newer_version_is_refused_as_such_and_is_no_damage(
    vault: Vault, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setitem(ledger._DETAILS, "auctioned", {"records": int})
        with vault._writing():
            ledger.append(vault._store, "auctioned", {"records": 3})
    sentence = "entry 3 is of a kind that this version of tpsl does not know, 'auctioned': a newer version wrote it"
    assert any(sentence in problem for problem in vault.verify())
    for use in (vault.ledger, lambda: vault.release(laplace(1.0))):
        with pytest.raises(VaultError, match=sentence):
            use()
    assert vault.head() == ledger.read_last(vault._store.connection)[1]
    with sqlite3.connect(folder / "vault.sqlite") as connection:
        assert connection.execute("SELECT COUNT(*) FROM ledger").fetchone() == (3,)
