"""A vault that was restored from an old copy is noticed by its witness."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import laplace
from tpsl.vault import Vault, VaultError


@pytest.fixture
def witness(vault: Vault, tmp_path: Path) -> Path:
    """The witness of the vault, on what stands for another disk."""
    file = tmp_path / "elsewhere" / "witness"
    vault.appoint_witness(file)
    return file


def lines(witness: Path) -> list[str]:
    return witness.read_text().splitlines()


def test_the_witness_has_a_line_for_each_state_of_the_ledger(vault: Vault, witness: Path) -> None:
    heads = [vault.head()]
    vault.release(laplace(1.0), ids=range(10))
    heads.append(vault.head())
    vault.release(laplace(1.0), ids=range(10))  # nothing is drawn
    vault.add([(["new"], [1], None)])
    heads.append(vault.head())
    assert lines(witness) == [f"{number} {head}" for number, head in enumerate(heads, 2)]
    assert witness.stat().st_mode & 0o777 == 0o600
    Vault.open(vault.path).close()
    assert vault.verify() == []
    assert len(lines(witness)) == 3


def test_a_restored_copy_that_is_older_is_not_opened(vault: Vault, witness: Path, tmp_path: Path) -> None:
    vault.back_up(tmp_path / "copy")
    with Vault.open(tmp_path / "copy") as copy:  # nothing has happened since
        assert copy.head() == vault.head()
    vault.release(laplace(1.0))
    vault.close()
    shutil.rmtree(vault.path)
    shutil.copytree(tmp_path / "copy", vault.path)
    with pytest.raises(VaultError, match=r"older than its witness .*elsewhere/witness, .* has seen ledger entry 3, "):
        Vault.open(vault.path)
    with Vault.open(vault.path, of_any_age=True) as stale:
        (problem,) = stale.verify()
        assert problem.startswith("the vault is older than its witness")
        for file in (witness, tmp_path / "another"):
            with pytest.raises(VaultError, match="older than its witness"):
                stale.appoint_witness(file)
    witness.unlink()
    with pytest.raises(VaultError, match=r"cannot be read .*; if it is lost, and this is the newest copy of the vault"):
        Vault.open(vault.path)
    with Vault.open(vault.path, of_any_age=True) as stale:
        stale.appoint_witness(tmp_path / "another")
    Vault.open(vault.path).close()


def test_a_witness_is_of_one_vault(vault: Vault, witness: Path, tmp_path: Path) -> None:
    with Vault.create(tmp_path / "other", batches=[(["a"], [1], None)]) as other:
        with pytest.raises(VaultError, match=r"older than its witness .*, or another one"):
            other.appoint_witness(witness)
        (tmp_path / "notes").write_text("something else\n")
        with pytest.raises(VaultError, match="notes is no witness of a vault"):
            other.appoint_witness(tmp_path / "notes")
    vault.appoint_witness(witness)  # the one that it has
    assert len(lines(witness)) == 1


def test_lines_that_two_processes_wrote_at_once_may_be_out_of_order(vault: Vault, witness: Path) -> None:
    vault.release(laplace(1.0), ids=range(10))
    first, second = lines(witness)
    witness.write_text(f"{second}\n{first}\n{second[:20]}")  # and a line that was cut off by a crash
    Vault.open(vault.path).close()
    witness.write_text(f"{second}\n9 {'f' * 64}\n{first}\n")
    with pytest.raises(VaultError, match="has seen ledger entry 9"):
        Vault.open(vault.path)


@pytest.mark.parametrize("characters", [1, 5, 40, 66])
def test_a_line_that_was_cut_off_does_not_spoil_the_next_one(vault: Vault, witness: Path, characters: int) -> None:
    vault.release(laplace(1.0), ids=range(10))
    cut = lines(witness)[-1][:characters]
    with witness.open("a") as file:
        file.write(cut)
    vault.release(laplace(1.0))
    assert lines(witness)[2:] == [cut, f"4 {vault.head()}"]
    Vault.open(vault.path).close()


def test_a_witness_that_cannot_be_written_is_not_appointed(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, reason in (("file/witness", "no witness can be written there"), ("file", "is no witness of a vault")):
        with pytest.raises(VaultError, match=reason):
            vault.appoint_witness(tmp_path / place)
    for place in (vault.path / "witness", vault.path / "deep" / ".." / "witness"):
        with pytest.raises(VaultError, match="a witness in the folder of its vault is restored with it"):
            vault.appoint_witness(place)
    Vault.open(vault.path).close()
    assert [file.name for file in vault.path.iterdir()] == ["vault.sqlite"]


def test_without_its_witness_nothing_more_leaves_the_vault(vault: Vault, witness: Path) -> None:
    shutil.rmtree(witness.parent)
    witness.parent.write_text("no folder any more")
    with pytest.raises(VaultError, match=r"cannot be written .*; what was done is in the vault"):
        vault.release(laplace(1.0))
    with pytest.raises(VaultError, match="cannot be read"):
        Vault.open(vault.path)


# Killed when the release is in the vault, and before the witness knows of it.
KILLED = """
import os, signal
from tpsl.mechanisms import laplace
from tpsl.vault import Vault
from tpsl.vault.witness import LedgerState

vault = Vault.open(place)
LedgerState.attest = lambda state: os.kill(os.getpid(), signal.SIGKILL)
vault.release(laplace(1.0))
"""


# Killed when the witness is appointed, and before anything is told to it after that.
APPOINTING = """
import os, signal
from tpsl.vault import Vault
from tpsl.vault.witness import LedgerState

vault = Vault.open(place)
LedgerState.attest = lambda state: os.kill(os.getpid(), signal.SIGKILL)
vault.appoint_witness(file)
"""


def test_a_vault_whose_witness_was_just_appointed_is_opened(
    vault: Vault, tmp_path: Path, fork: Callable[..., Any]
) -> None:
    file = tmp_path / "elsewhere" / "witness"
    assert fork(APPOINTING, tmp_path, place=str(vault.path), file=str(file)).status(60) == -signal.SIGKILL
    Vault.open(vault.path).close()
    assert lines(file) == [f"2 {vault.head()}"]


def test_a_vault_that_is_ahead_of_its_witness_tells_it(
    vault: Vault, witness: Path, tmp_path: Path, fork: Callable[..., Any]
) -> None:
    assert fork(KILLED, tmp_path, place=str(vault.path)).status(60) == -signal.SIGKILL
    assert len(lines(witness)) == 1
    with Vault.open(vault.path) as opened:
        assert lines(witness)[1:] == [f"3 {opened.head()}"]
        assert opened.release(laplace(1.0)).released == 0


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
