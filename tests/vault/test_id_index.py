"""The index of ids against a dictionary, with buckets and memory so small that every path is gone."""

from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import laplace
from tpsl.vault import Vault, VaultError, VaultFull, id_index, nameless
from tpsl.vault.texts import Texts


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few entries in a bucket, few buckets at once, and few ids in memory."""
    for name, value in {"_WHEN_BUILT": 4, "_AT_MOST": 8, "_BUCKETS_AT_ONCE": 16, "_IN_MEMORY": 100}.items():
        monkeypatch.setattr(id_index, name, value)


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


def test_ids_whose_hashes_are_alike_are_told_apart(tiny: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = Texts.hashes
    monkeypatch.setattr(Texts, "hashes", lambda texts: hashes(texts) & np.uint64(0xE000000100000000))  # 16 of them
    ids = ids_of(0, 300)
    with Vault.create(folder, batches=[(ids, [0] * 300, None)]) as vault:
        assert (vault.positions(ids[::-1]) == np.arange(300)[::-1]).all()
        assert vault.positions(["user x", ids[7], "7"]).tolist() == [-1, 7, -1]
        with pytest.raises(VaultError, match=r"row 301: the id 'new' occurred before"):
            vault.add([(["new", *ids[1:], "new"], [0] * 301, None)])
        assert vault.verify() == []


@pytest.mark.parametrize("at", [1, 99, 499])
def test_an_id_that_comes_twice_is_found_wherever_it_is(tiny: None, folder: Path, at: int) -> None:
    ids = ids_of(0, 500)
    with pytest.raises(VaultError, match=rf"the id {ids[0]!r} occurs more than once, .* rows 1 and {at + 1}"):
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
        patch.setattr(nameless, "SpooledTemporaryFile", lambda size, dir: Path("/dev/full").open("r+b"))  # noqa: SIM115
        with pytest.raises(VaultFull, match="the disk is full; nothing was changed"):
            vault.add([(ids_of(0, 500), [0] * 500, None)])
    assert (len(vault), vault.verify()) == (1000, [])
    assert vault.add([(ids_of(0, 500), [0] * 500, None)]).new == 500
    assert vault.release(laplace(1.0)).released == 1500


def test_a_damaged_index_is_told_when_it_is_asked(vault: Vault) -> None:
    ((entries,),) = vault._connection.execute("SELECT entries FROM id_index").fetchall()
    beyond = (np.frombuffer(entries, np.uint64) + np.uint64(1000)).tobytes()
    vault._connection.execute("UPDATE id_index SET entries = ?", (beyond,))
    with pytest.raises(VaultError, match="the index of the record ids is damaged; run verify"):
        vault.positions(range(1000))


def test_the_number_of_a_bucket_cannot_keep_verify_from_ending(vault: Vault) -> None:
    vault._connection.execute("INSERT INTO id_index VALUES (?, x'')", (1 << 62,))
    assert vault.verify() == [
        "the index of the record ids is not that of the ids, so some may not be found, or occur twice"
    ]
