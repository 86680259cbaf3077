"""What a vault of people recognises when they come without an alignment."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tpsl.vault import Vault, VaultError
from tpsl.vault.blocks import CHUNK
from tpsl.vault.storage import DATABASE


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    with Vault.create(tmp_path / "vault", counts_people=True) as made:
        yield made


def test_records_are_kept_once_and_compared_with_their_labels(vault: Vault) -> None:
    ids = [f"person-{row}" for row in range(CHUNK + 5)]
    labels = np.arange(len(ids)) % 2
    assert vault.compare_file_records(ids, labels).known == 0, "as in a vault that never kept any"
    vault.keep_file_records(ids[:-3], labels[:-3])
    vault.keep_file_records(ids, 1 - labels)  # those that are there stay as they are
    found = vault.compare_file_records(["stranger", *ids[2:6], ids[-1]], np.array([0, 0, 1, 1, -1, 1]))
    assert (found.known, found.released, found.differing, found.first_differing) == (5, 5, 1, ids[4])
    assert vault.compare_file_records(ids, 1 - labels).differing == len(ids) - 3
    assert vault.compare_file_records(ids[:-3], labels[:-3]).same
    rows = sqlite3.connect(vault.path / DATABASE).execute("SELECT COUNT(*) FROM file_records").fetchone()
    assert rows == (3,), "pieces that a row can hold, and the three that were new"


def test_labels_that_have_nothing_to_do_with_each_other_are_other_people(vault: Vault) -> None:
    rng = np.random.default_rng(0)
    ids, (one, other) = [str(row) for row in range(400)], rng.integers(0, 2, (2, 400))
    vault.keep_file_records(ids, one)
    assert not vault.compare_file_records(ids, other).same_label
    corrected = np.where(np.arange(400) < 20, 1 - one, one)
    assert vault.compare_file_records(ids, corrected).same_label


def test_damage_is_one_sentence(vault: Vault) -> None:
    vault.keep_file_records(["one"], np.array([0]))
    with sqlite3.connect(vault.path / DATABASE) as connection:
        connection.execute("UPDATE file_records SET ids = 7")
    with pytest.raises(VaultError, match="the records of the label party's file are damaged"):
        vault.compare_file_records(["one"], np.array([0]))
