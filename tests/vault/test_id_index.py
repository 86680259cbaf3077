"""The index of ids against a dictionary, with memory so small that every path is gone."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.peak_memory import peak_bytes
from tests.vault_labels import true_labels

from tpsl import spill
from tpsl.mechanisms import laplace, randomized_response
from tpsl.vault import Vault, VaultError, VaultFull, id_index
from tpsl.vault.blocks import CHUNK
from tpsl.vault.texts import Hashes, Texts


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few ids in memory."""
    monkeypatch.setattr(id_index, "_IDS_AT_ONCE", 300)
    monkeypatch.setattr(spill, "ROWS_AT_ONCE", 100)


def ids_of(start: int, stop: int) -> list[str]:
    return [f"user {number * 7919 % 100_003}" for number in range(start, stop)]


def test_ids_are_found_in_any_order_while_the_vault_grows(tiny: None, folder: Path) -> None:
    rng, count = np.random.default_rng(0), 700
    with Vault.create(folder, batches=[(ids_of(0, count), [0] * count, None)]) as vault:
        for more in (1, 30, 400, 5, 2000):
            vault.add([(ids_of(count, count + more), [0] * more, None)])
            count += more
            asked = rng.permutation(count + 50)
            known = vault.positions([ids_of(at, at + 1)[0] for at in asked.tolist()])
            assert (known == np.where(asked < count, asked, -1)).all()
            assert (vault.positions(ids_of(10, count)) == np.arange(10, count)).all()
        assert vault.verify() == []


def test_ids_that_share_the_first_hash_are_told_apart_by_the_second(
    tiny: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = Texts.hashes

    def alike(texts: Texts, key: bytes) -> tuple[Hashes, Hashes]:
        first, second = hashes(texts, key)
        return first & np.uint64(0xE000000100000000), second  # 16 of them

    monkeypatch.setattr(Texts, "hashes", alike)
    ids = ids_of(0, 300)
    with Vault.create(folder, batches=[(ids, [0] * 300, None)]) as vault:
        assert (vault.positions(ids[::-1]) == np.arange(300)[::-1]).all()
        assert vault.positions(["user x", ids[7], "7"]).tolist() == [-1, 7, -1]
        with pytest.raises(VaultError, match=r"row 301: the id 'new' occurred before"):
            vault.add([(["new", *ids[1:], "new"], [0] * 301, None)])
        assert vault.verify() == []


def test_a_look_up_reads_no_id(folder: Path) -> None:
    with Vault.create(folder, batches=[(np.arange(70_000), np.zeros(70_000), None)]) as vault:
        statements: list[str] = []
        vault._store.connection.set_trace_callback(statements.append)
        assert vault.positions([69_999, 3]).tolist() == [69_999, 3]
    assert statements
    assert not [text for text in statements if "ids" in text]


def test_noisy_labels_are_the_same_in_any_order_and_piece(tiny: None, folder: Path) -> None:
    ids, rng = ids_of(0, 2000), np.random.default_rng(0)
    with Vault.create(folder, batches=[(ids, [0, 1] * 1000, None)]) as vault:
        vault.release(randomized_response(1.0), ids=ids[:1500])
        (in_order,) = vault.noisy_labels(randomized_response(1.0), ids[:1500]).draws
        mixed = [*rng.permutation(400).tolist(), *range(400, 1500), 3, 3]  # some in the vault's order, and one again
        (found,) = vault.noisy_labels(randomized_response(1.0), [ids[at] for at in mixed]).draws
        assert np.array_equal(found, in_order[mixed])
        asked = [ids[at] for at in [1700, *rng.permutation(1600).tolist()]]
        with pytest.raises(VaultError, match=rf"101 of the 1,601 records are not released .*first is {ids[1700]!r}"):
            vault.noisy_labels(randomized_response(1.0), asked)
        with pytest.raises(VaultError, match=r"does not know 2 of the 1602 records \(the first is 'x'\)"):
            vault.noisy_labels(randomized_response(1.0), [*asked[1:], "x", "y"])
        assert (true_labels(vault, asked) == [ids.index(id) % 2 for id in asked]).all()


def peaks_of(folder: Path, count: int) -> dict[str, int]:
    """The most memory that requests for all records of a vault take, in random order."""
    numbers, labels, mechanism = np.arange(count), np.zeros(count, np.int64), randomized_response(1.0)
    ids = pa.array(numbers * 7919 % 1_000_003).cast(pa.string())
    asked = ids.take(pa.array(np.random.default_rng(0).permutation(count)))
    with Vault.create(folder, batches=[(ids, labels, None)], scratch=True) as vault:
        return {
            "release": peak_bytes(lambda: vault.release(mechanism, ids=asked)),
            "look up": peak_bytes(lambda: vault.noisy_labels(mechanism, asked)),
            "compare": peak_bytes(lambda: vault.compare(asked, labels)),
        }


def test_memory_does_not_grow_with_the_ids_that_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the position of each."""
    monkeypatch.setattr(id_index, "_IDS_AT_ONCE", 1 << 16)
    monkeypatch.setattr(spill, "ROWS_AT_ONCE", 1 << 15)
    few, many = (peaks_of(tmp_path / str(count), count) for count in (2 * CHUNK, 6 * CHUNK))
    grown = {name: (many[name] - few[name]) / (4 * CHUNK) for name in few}
    assert max(grown.values()) < 20, grown


@pytest.mark.parametrize("at", [1, 99, 499])
def test_an_id_that_comes_twice_is_found_wherever_it_is(tiny: None, folder: Path, at: int) -> None:
    ids = ids_of(0, 500)
    with pytest.raises(VaultError, match=rf"row {at + 1}: the id {ids[0]!r} occurred before, .* row 1$"):
        Vault.create(folder, batches=[([*ids[:at], ids[0], *ids[at:]], [0] * 501, None)])
    with Vault.create(folder, batches=[(ids, [0] * 500, None)]) as vault:
        new = [f"n{number}" for number in range(500)]
        given = [ids[3], *new[:at], ids[5], new[0], *new[at:]]
        with pytest.raises(VaultError, match=rf"row {at + 3}: the id 'n0' occurred before"):
            vault.add([(given, [0] * len(given), None)])
        assert len(vault) == 500


def test_a_disk_that_is_full_beside_the_database_changes_nothing(
    tiny: None, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(spill, "TemporaryFile", lambda dir: Path("/dev/full").open("r+b"))  # noqa: SIM115
        with pytest.raises(VaultFull, match="the disk is full; nothing was changed"):
            vault.add([(ids_of(0, 500), [0] * 500, None)])
    assert (len(vault), vault.verify()) == (1000, [])
    assert vault.add([(ids_of(0, 500), [0] * 500, None)]).new == 500
    assert vault.release(laplace(1.0)).released == 1500


@pytest.mark.parametrize("chunk", [(1 << 15) - 1, (1 << 16) - 1])
def test_positions_have_more_than_31_and_32_bits(folder: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Records on both sides of position 2^31 and 2^32, as if all blocks before them were there."""
    numbers = [str(number * 7919 % 100_003) for number in range(CHUNK + 200)]
    first, ids, more, labels = chunk * CHUNK, numbers[:500], numbers[500:], np.arange(500) % 2
    with Vault.create(folder, batches=[(ids, labels, None)]) as vault:
        vault.release(laplace(1.0), ids=ids[:100])
        for table, trigger in (("blocks", "blocks_fixed"), ("outcomes", "outcomes_fixed"), ("id_index", "")):
            vault._store.execute(f"DROP TRIGGER IF EXISTS '{trigger}'")
            vault._store.execute(f"UPDATE {table} SET chunk = ?", (chunk,))
        monkeypatch.setattr(
            id_index, "range", lambda *to: range(*((chunk, *to) if len(to) == 1 else to)), raising=False
        )
        assert len(vault) == first + 500
        assert (vault.positions(ids[::-1]) == first + np.arange(500)[::-1]).all()
        assert vault.add([([*more, ids[7]], [0] * len(more) + [0], None)]).changed == 1
        assert (vault.positions(more) == first + np.arange(500, CHUNK + 200)).all()
        assert vault.release(laplace(1.0), ids=[*ids, *more[-5:]]).released == 405
        noisy = vault.noisy_labels(laplace(1.0), [*more[-5:], *ids]).draws[0]
        assert (noisy[5:] == vault.noisy_labels(laplace(1.0), ids).draws[0]).all()
        assert true_labels(vault, [ids[9], ids[7]]).tolist() == [1, 0]
        assert vault.total(more[-6:]).epsilon == 1.0


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM id_index",
        "UPDATE id_index SET entries = substr(entries, 19)",
        "UPDATE id_index SET entries = CAST(substr(entries, 1, 16) || x'ffff' || substr(entries, 19) AS BLOB)",
        "DELETE FROM id_key",
    ],
)
def test_a_damaged_index_is_told_when_it_is_asked_and_nothing_is_added(vault: Vault, damage: str) -> None:
    vault._store.execute(damage)
    with pytest.raises(VaultError, match="the index of the record ids is damaged; run verify"):
        vault.positions(range(1000))
    with pytest.raises(VaultError, match="the index of the record ids is damaged; run verify"):
        vault.add([(range(5), [0] * 5, None)])
    assert vault.verify() == [
        "the index of the record ids is not that of the ids, so some may not be found, or occur twice"
    ]
