"""Columns of records: what was appended in any portions is there, block by block."""

import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import laplace, randomized_response
from tpsl.vault import Vault, VaultError, blocks
from tpsl.vault.blocks import CHUNK, Block
from tpsl.vault.texts import Texts


@pytest.fixture
def connection() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.executescript(blocks.SCHEMA)
    yield made
    made.close()


def records(start: int, stop: int, units: bool = True) -> Block:
    numbers = range(start, stop)
    whom = Texts.of([f"user {number // 3}" for number in numbers]) if units else None
    return Block(Texts.of([f"id {number}" for number in numbers]), np.arange(start, stop) % 1000, whom)


def test_portions_of_any_size_become_the_same_blocks(connection: sqlite3.Connection) -> None:
    bounds = [0, 5, 5, 100, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7]
    for start, stop in pairwise(bounds):
        blocks.append(connection, 1000, records(start, stop))
        assert blocks.count_records(connection) == stop
    assert [len(block) for block in blocks.read_blocks(connection)] == [CHUNK, CHUNK, 7]
    whole = records(0, bounds[-1])
    found = Block.joined(list(blocks.read_blocks(connection)))
    assert found.ids.same_as(whole.ids)
    assert found.units.same_as(whole.units)
    assert (found.labels == whole.labels).all()
    assert sum(len(block) for block in blocks.read_blocks(connection, CHUNK - 3)) == CHUNK + 10
    assert blocks.ids_between(connection, CHUNK - 2, CHUNK + 2).same_as(whole.ids.part(CHUNK - 2, CHUNK + 2))


def test_columns_are_read_in_the_order_that_is_asked_for(connection: sqlite3.Connection) -> None:
    blocks.append(connection, 1000, records(0, 2 * CHUNK))
    at = np.random.default_rng(0).permutation(2 * CHUNK)[:500]
    assert (blocks.labels_at(connection, at) == at % 1000).all()
    assert blocks.units_at(connection, at).to_list() == [f"user {number // 3}" for number in at.tolist()]
    asked = Texts.of([f"id {number if number % 2 else -1}" for number in at.tolist()])
    assert (blocks.have_ids(connection, at, asked) == (at % 2 == 1)).all()
    blocks.set_labels(connection, at[:50], np.full(50, 777))
    assert (blocks.labels_at(connection, at) == np.where(np.arange(500) < 50, 777, at % 1000)).all()
    assert blocks.id_at(connection, CHUNK + 3) == f"id {CHUNK + 3}"


def test_all_records_have_a_unit_or_none(connection: sqlite3.Connection) -> None:
    blocks.append(connection, 2, records(0, 2, units=False))
    blocks.append(connection, 2, records(2, 4, units=False))
    assert not blocks.has_units(connection)
    assert blocks.units_at(connection, np.arange(4)).to_list() == [""] * 4


def test_labels_of_many_classes_take_two_bytes(folder: Path) -> None:
    labels = np.arange(0, 65_536, 97)
    with Vault.create(folder, classes=65_536, batches=[(range(len(labels)), labels, None)]) as vault:
        assert (vault.true_labels_for_evaluation(range(len(labels))) == labels).all()
        vault.add([([0], [65_535], None)])
        assert vault.true_labels_for_evaluation([1, 0]).tolist() == [97, 65_535]
        vault.release(randomized_response(5.0, classes=65_536))
        assert vault.verify() == []


@pytest.mark.parametrize("statement", ["DELETE FROM blocks WHERE chunk = 0", "UPDATE blocks SET labels = x'00'"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda vault: vault.true_labels_for_evaluation([5]),
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
