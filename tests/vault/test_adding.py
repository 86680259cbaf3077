import numpy as np
import pyarrow as pa
import pytest
from tests.vault_labels import true_labels

from tpsl.mechanisms import laplace, randomized_response
from tpsl.vault import Added, Vault, VaultError, blocks


def test_what_arrives_later_is_appended_and_counted(vault: Vault, labels: np.ndarray) -> None:
    before = labels.copy()
    vault.release(laplace(1.0), ids=np.arange(500))
    given = vault.noisy_labels(laplace(1.0), np.arange(500)).draws[0]
    labels[[3, 4, 700]] ^= 1
    added = vault.add([(np.arange(2000), np.r_[labels, np.zeros(1000, int)], None)])
    assert added == Added(new=1000, unchanged=997, changed=3, changed_after_release=2)
    assert len(vault) == 2000
    assert (true_labels(vault, np.arange(1000)) == labels).all()
    assert (before != labels).sum() == 3
    assert (vault.noisy_labels(laplace(1.0), np.arange(500)).draws[0] == given).all()
    entry = vault.ledger().entries[-1].as_dict()
    assert (entry["kind"], entry["records"], entry["labels_changed_after_release"]) == ("added", 1000, 2)
    assert vault.verify() == []


def test_adding_nothing_new_is_an_entry_all_the_same(vault: Vault, labels: np.ndarray) -> None:
    heads = [vault.head()]
    for batches, unchanged in (([(np.arange(1000), labels, None)], 1000), ([], 0)):
        assert vault.add(batches) == Added(0, unchanged, 0, 0)
        entry = vault.ledger().entries[-1]
        assert (entry.kind, entry.details["records"], entry.details["labels_changed"]) == ("added", 0, 0)
        heads.append(vault.head())
    assert len(set(heads)) == 3
    assert vault.verify() == []


@pytest.mark.parametrize(
    "batches",
    [
        [(["new", "new"], [0, 1], None)],
        [(["new"], [0], None), (["new"], [0], None)],
        [(["5", "new", 5], [0, 0, 0], None)],
        [(["5"], [0], None), (["new", "5"], [0, 0], None)],
    ],
)
def test_an_id_twice_in_one_input_is_refused_whole(vault: Vault, batches: list, labels: np.ndarray) -> None:
    with pytest.raises(VaultError, match=r"row [23]: the id '(new|5)' occurred before"):
        vault.add(batches)
    assert len(vault) == 1000
    assert (true_labels(vault, np.arange(1000)) == labels).all()
    assert vault.verify() == []


def test_an_error_in_the_callers_iterator_undoes_everything(vault: Vault) -> None:
    def breaks():
        yield ["a"], [1], None
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        vault.add(breaks())
    assert len(vault) == 1000


def test_rows_are_counted_over_batches_and_lengths_must_agree(vault: Vault) -> None:
    with pytest.raises(VaultError, match="row 70002: 5 is not a label"):
        vault.add([(np.arange(70_000) + 5000, np.zeros(70_000), None), (["a", "b"], [1, 5], None)])
    with pytest.raises(VaultError, match="3 ids but another number"):
        vault.add([(["a", "b", "c"], [1, 1], None)])


def test_the_unit_of_a_record_is_fixed(folder) -> None:
    with Vault.create(folder, batches=[(["a", "b"], [0, 1], ["u", "v"])]) as vault:
        with pytest.raises(VaultError, match="row 1: the record 'b' is in the vault with unit 'v', not with 'w'"):
            vault.add([(["b"], [1], ["w"])])
        assert vault.add([(["b", "c"], [1, 1], ["v", "v"])]).new == 1
        assert vault.add([(["b"], [0], None)]).changed == 1
        assert vault.verify() == []


def test_records_with_and_without_a_unit_do_not_mix(folder) -> None:
    with Vault.create(folder, batches=[(["a", "b"], [0, 1], ["u", "v"])]) as vault:
        head = vault.ledger().head
        with pytest.raises(VaultError, match="the record 'c' is new and has no unit, but the vault has units"):
            vault.add([(["b", "c"], [1, 1], None)])
        with pytest.raises(VaultError, match="the record 'd' is new and has no unit"):
            vault.add([(["c"], [1], ["w"]), (["d"], [1], None)])
        assert (len(vault), vault.ledger().head, vault.verify()) == (2, head, [])


def test_units_do_not_come_into_a_vault_without(vault: Vault, tmp_path) -> None:
    for ids in (["new"], ["5"]):
        with pytest.raises(VaultError, match="row 1: it comes with units, but the records before it have none"):
            vault.add([(ids, [1], ["u"])])
    assert (len(vault), vault.verify()) == (1000, [])
    with pytest.raises(VaultError, match="row 2: it comes with units, but the records before it have none"):
        Vault.create(tmp_path / "mixed", batches=[(["a"], [1], None), (["b"], [1], ["u"])], apart="other people")


def test_the_first_records_of_an_empty_vault_decide_about_units(folder) -> None:
    with Vault.create(folder) as vault:
        vault.add([(["a"], [1], ["u"])])
        with pytest.raises(VaultError, match="'b' is new and has no unit"):
            vault.add([(["b"], [1], None)])
        assert vault.add([(["b"], [1], ["u"])]).new == 1


def test_a_vault_may_begin_empty(folder) -> None:
    with Vault.create(folder, classes=5) as vault:
        assert (len(vault), vault.classes, vault.verify()) == (0, 5, [])
        assert vault.release(randomized_response(1.0, classes=5)).released == 0
        assert vault.add([(["a"], [4], None)]).new == 1
        with pytest.raises(VaultError, match="5 is not a label; labels are 0, 1, 2, 3, 4"):
            vault.add([(["b"], [5], None)])
        assert vault.ledger().epsilon_per_record == 0


def test_a_vault_says_which_records_it_has(vault: Vault) -> None:
    assert vault.knows([]).tolist() == []
    assert vault.knows(["999", 1000, "0", "007", 7, 7]).tolist() == [True, False, True, False, True, True]
    assert vault.knows(pa.array(["1000", "1001"])).tolist() == [False, False]
    vault.add([(pa.array(["1001"]), [1], None)])
    assert vault.knows(pa.array(["1000", "1001"])).tolist() == [False, True]
    with pytest.raises(VaultError, match="row 2: the id is missing"):
        vault.knows(pa.array(["0", None]))


def test_many_small_batches_are_joined_once_each(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    joined, stored = 0, 0

    def count_joined(cls, parts):
        nonlocal joined
        joined += len(parts)
        return join(parts)

    def count_stored(store, classes, records) -> None:
        nonlocal stored
        stored += 1
        append(store, classes, records)

    join, append = blocks.Block.joined, blocks.append
    monkeypatch.setattr(blocks.Block, "joined", classmethod(count_joined))
    monkeypatch.setattr(blocks, "append", count_stored)
    with Vault.create(folder, batches=(([number], [number % 2], None) for number in range(3000))) as vault:
        assert len(vault) == 3000
        assert true_labels(vault, [2999, 0]).tolist() == [1, 0]
    assert (joined, stored) == (3000, 1)


def test_rows_with_units_and_without_are_told_by_their_rows(vault: Vault) -> None:
    batches = [([f"n{number}"], [0], None if number < 5 else ["u"]) for number in range(8)]
    with pytest.raises(VaultError, match="the input, row 6: it comes with units"):
        vault.add(batches)
