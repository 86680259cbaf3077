"""What a vault of people recognises when they come without an alignment."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tpsl.vault import Vault, VaultError
from tpsl.vault.blocks import CHUNK
from tpsl.vault.canonical import ids_as_text
from tpsl.vault.same_labels import _file_records, tells
from tpsl.vault.storage import DATABASE


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    with Vault.create(tmp_path / "vault", counts_people=True) as made:
        yield made


def kept(vault: Vault, ids: list[str]) -> list[int]:
    """The labels of the file's records that the vault keeps, -1 for those that it does not know."""
    known, labels = _file_records(vault._store)
    return [-1 if at < 0 else int(labels[at]) for at in ids_as_text(ids).positions_in(known).tolist()]


def test_records_are_kept_once_and_compared_with_their_labels(vault: Vault) -> None:
    ids = [f"person-{row}" for row in range(CHUNK + 5)]
    labels = np.arange(len(ids)) % 2
    assert kept(vault, ids[:3]) == [-1, -1, -1], "as in a vault that never kept any"
    vault.keep_file_records(ids[:-3], labels[:-3])
    vault.keep_file_records(ids, 1 - labels)  # those that are there stay as they are
    assert kept(vault, ["stranger", *ids[2:6], ids[-1]]) == [-1, *labels[2:6], 1 - labels[-1]]
    rows = sqlite3.connect(vault.path / DATABASE).execute("SELECT COUNT(*) FROM file_records").fetchone()
    assert rows == (3,), "pieces that a row can hold, and the three that were new"


def test_labels_that_have_nothing_to_do_with_each_other_are_not_the_same() -> None:
    one, other = np.random.default_rng(0).integers(0, 2, (2, 400))
    assert not tells(one, other)
    assert tells(one, np.where(np.arange(400) < 20, 1 - one, one)), "a few are corrected"


def test_damage_is_one_sentence(vault: Vault) -> None:
    vault.keep_file_records(["one"], np.array([0]))
    with sqlite3.connect(vault.path / DATABASE) as connection:
        connection.execute("UPDATE file_records SET ids = 7")
    with pytest.raises(VaultError, match="the records of the label party's file are damaged"):
        kept(vault, ["one"])
