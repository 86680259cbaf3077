"""Columns of records: what was appended in any batches is there, block by block."""

import sqlite3
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.vault_labels import true_labels

from tpsl.mechanisms import laplace, randomized_response
from tpsl.vault import Vault, VaultError, blocks
from tpsl.vault.blocks import CHUNK, Block
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.execute(blocks.SCHEMA)
    made.execute(blocks.ONLY_LABELS_CHANGE)
    yield Store(made, tmp_path, 1)
    made.close()


def records(start: int, stop: int, units: bool = True) -> Block:
    numbers = range(start, stop)
    whom = Texts.of([f"user {number // 3}" for number in numbers]) if units else None
    return Block(Texts.of([f"id {number}" for number in numbers]), np.arange(start, stop) % 1000, whom)


def test_batches_of_any_size_become_the_same_blocks(store: Store) -> None:
    bounds = [0, 5, 5, 100, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7]
    for start, stop in pairwise(bounds):
        blocks.append(store, 1000, records(start, stop))
        assert blocks.count_records(store) == stop
    assert [len(block) for block in blocks.read_blocks(store)] == [CHUNK, CHUNK, 7]
    whole = records(0, bounds[-1])
    found = Block.joined(list(blocks.read_blocks(store)))
    assert found.ids.to_list() == whole.ids.to_list()
    assert found.units.to_list() == whole.units.to_list()
    assert (found.labels == whole.labels).all()
    assert blocks.ids_between(store, CHUNK - 2, CHUNK + 2).to_list() == whole.ids.part(CHUNK - 2, CHUNK + 2).to_list()


def test_columns_are_read_in_the_order_that_is_asked_for(store: Store) -> None:
    blocks.append(store, 1000, records(0, 2 * CHUNK))
    at = np.random.default_rng(0).permutation(2 * CHUNK)[:500]
    assert (blocks.labels_at(store, at) == at % 1000).all()
    assert blocks.units_at(store, at).to_list() == [f"user {number // 3}" for number in at.tolist()]
    blocks.set_labels(store, at[:50], np.full(50, 777))
    assert (blocks.labels_at(store, at) == np.where(np.arange(500) < 50, 777, at % 1000)).all()
    assert blocks.id_at(store, CHUNK + 3) == f"id {CHUNK + 3}"


@pytest.mark.parametrize("at_once", [1 << 19, 100])
def test_ids_come_in_the_order_of_their_text(store: Store, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpsl.spill.ROWS_AT_ONCE", at_once)
    ids = [f"id {number * 7919 % 1009}" for number in range(1009)]
    blocks.append(store, 2, Block(Texts.of(ids), np.zeros(1009, np.int64), None))
    with blocks.ids_in_order(store) as ordered:
        found = [
            (id, at)
            for part, at_part in ordered.parts()
            for id, at in zip(Texts(part).to_list(), at_part.tolist(), strict=True)
        ]
    assert found == sorted((id, at) for at, id in enumerate(ids))


def test_all_records_have_a_unit_or_none(store: Store) -> None:
    blocks.append(store, 2, records(0, 2, units=False))
    blocks.append(store, 2, records(2, 4, units=False))
    assert not blocks.has_units(store)
    assert blocks.units_at(store, np.arange(4)).to_list() == [""] * 4


def test_labels_of_many_classes_take_two_bytes(folder: Path) -> None:
    labels = np.arange(0, 65_536, 97)
    with Vault.create(folder, classes=65_536, batches=[(range(len(labels)), labels, None)]) as vault:
        assert (true_labels(vault, range(len(labels))) == labels).all()
        vault.add([([0], [65_535], None)])
        assert true_labels(vault, [1, 0]).tolist() == [97, 65_535]
        vault.release(randomized_response(5.0, classes=65_536))
        assert vault.verify() == []


@pytest.mark.parametrize("statement", ["DELETE FROM blocks WHERE chunk = 0", "UPDATE blocks SET labels = x'00'"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda vault: true_labels(vault, [5]),
        lambda vault: vault.release(laplace(1.0)),
        lambda vault: vault.add([([5], [1], None)]),
    ],
)
def test_a_damaged_block_is_a_sentence(folder: Path, statement: str, ask: Callable[[Vault], object]) -> None:
    count = CHUNK + 10
    with Vault.create(folder, batches=[(range(count), np.zeros(count), None)]) as vault:
        vault._store.connection.execute("DROP TRIGGER blocks_stay")
        vault._store.connection.execute(statement)
        with pytest.raises(VaultError, match=r"missing between positions 0|are damaged|wrong length"):
            ask(vault)
