"""What some records have spent: as one label, exactly, and as the same label under several names."""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import DiscreteLaplace, gaussian, identity, laplace, randomized_response
from tpsl.vault import ReleasePolicy, Spent, StatisticPlan, Vault, VaultError, id_index

IDS = [f"r{number}" for number in range(70_000)]  # more than a chunk


def value_of(ids: list[str]) -> np.ndarray:
    return np.array([int(id[1:]) % 2 for id in ids])


def made(path: Path, ids: list[str] = IDS, label: str = "label") -> Vault:
    return Vault.create(
        path / label if path.exists() else path,
        label=None if path.exists() else label,
        batches=[(ids, value_of(ids), None)],
    )


def test_the_total_is_of_the_records_that_are_asked_for(tmp_path: Path) -> None:
    vault = made(tmp_path / "vault")
    vault.release(laplace(0.1), ids=IDS[:66_000])
    vault.release(randomized_response(0.2), ids=IDS[65_000:], compose=True)
    assert vault.total(IDS[:10]) == Spent(laplace(0.1).epsilon, 0.0, True, 10)
    assert vault.total(IDS[-10:]).epsilon == randomized_response(0.2).epsilon
    both = vault.total(IDS)
    exact = Fraction(laplace(0.1).epsilon) + Fraction(randomized_response(0.2).epsilon)
    assert Fraction(both.epsilon) >= exact > Fraction(math.nextafter(both.epsilon, 0.0))
    assert (both.private, both.records) == (True, 70_000)
    vault.release(gaussian(2.0, 1e-5), ids=IDS[:1], compose=True, seed=1)
    assert (vault.total(IDS[:2]).delta, vault.total(IDS[:2]).private, vault.total(IDS[1:]).private) == (
        1e-5,
        False,
        True,
    )
    with pytest.raises(VaultError, match="does not know 1 of the 1 records"):
        vault.total(["stranger"])


@pytest.mark.parametrize("at_once", [3, 1 << 20])
def test_a_vault_says_which_labels_differ_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(id_index, "_IDS_AT_ONCE", at_once)
    vault = made(tmp_path / "vault", IDS[:100])
    vault.release(laplace(1.0), ids=IDS[:30])
    labels = np.arange(200) % 2
    labels[[7, 50]] ^= 1
    labels[9] = -1  # unknown
    found = vault.compare(IDS[:200], labels)
    assert (found.known, found.differing, found.first_differing) == (100, 2, "r7")
    assert vault.compare(IDS[:200][::-1], labels[::-1]).first_differing == "r50"
    assert not found.same
    assert found.same_label  # two corrections: the same records
    assert vault.compare(IDS[:100], np.where(labels[:100] < 0, -1, 1 - labels[:100])).same_label, "other names"
    noise = np.random.default_rng(0).integers(0, 2, 100)
    assert not vault.compare(IDS[:100], noise).same_label
    assert vault.compare(IDS[60:90], labels[60:90]).same
    assert not vault.compare(IDS[100:200], labels[100:]).same  # none in common


COMPOSING = ReleasePolicy(compose=True)


def test_the_sum_over_labels_is_made_for_each_record(tmp_path: Path) -> None:
    """Three labels in a chain: each shares records with the next, and no record is in all of them."""
    shares = {"a": IDS[:100], "b": IDS[90:200], "c": IDS[190:300], "far": IDS[500:600]}
    labels = {name: made(tmp_path / "vault", ids, name) for name, ids in shares.items()}
    for vault in labels.values():
        vault.release(laplace(1.0), policy=COMPOSING)
    assert {name: vault.total(None).epsilon for name, vault in labels.items()} == {"a": 2, "b": 2, "c": 2, "far": 1}
    assert labels["a"].total(IDS[:90]).epsilon == 1, "records that no other label has"
    assert [vault.verify() for vault in labels.values()] == [[]] * 4


def test_the_sum_over_labels_composes_labels_with_statistics(tmp_path: Path) -> None:
    labels, statistic, apart = (made(tmp_path / "vault", IDS[:100], name) for name in ("labels", "statistic", "apart"))
    plan = StatisticPlan(DiscreteLaplace(200), 100, 2)
    labels.release(laplace(1.0), ids=IDS[:60])
    statistic.release_statistic(plan, IDS[50:100], [np.ones((50, 2), np.int64)], policy=COMPOSING)
    found = apart.total(None)
    assert (found.epsilon, found.delta, found.private) == (1.5, 0.0, True)
    assert statistic.total(IDS[:50]).epsilon == 1.0
    assert apart.total(IDS[70:100]).epsilon == 0.5


def test_labels_in_another_order_are_the_same_records(tmp_path: Path) -> None:
    one, other = made(tmp_path / "vault", IDS[:50]), made(tmp_path / "vault", IDS[:50][::-1], "other")
    one.release(laplace(1.0), ids=IDS[:10])
    other.release(laplace(2.0), ids=IDS[10:50])
    assert one.total(None).epsilon == 2
    other.release(identity(), ids=IDS[:1], compose=True)
    found = one.total(None)
    assert (found.epsilon, found.private) == (math.inf, False)
    assert not other.ledger().private


def test_different_labels_are_accounted_for_one_by_one_and_together(tmp_path: Path) -> None:
    clicks = made(tmp_path / "vault", IDS[:1000])
    bought = np.random.default_rng(0).integers(0, 2, 1000)
    sales = Vault.create(tmp_path / "vault/sales", batches=[(IDS[:1000], bought, None)])
    clicks.release(laplace(1.0))
    sales.release(laplace(0.5), ids=IDS[:500])  # no second release of anything
    ledgers = clicks.ledger(), sales.ledger()
    assert [found.epsilon_per_record for found in ledgers] == [1.0, 0.5]
    assert [found.all_labels and found.all_labels.epsilon for found in ledgers] == [1.5, 1.5]


@pytest.mark.parametrize(
    "classes, values",
    [
        (2, lambda labels: 1 - labels),  # the classes reversed
        (7, lambda labels: labels),  # more classes declared
        (5, lambda labels: labels * 3 + 1),  # other names
        (2, lambda labels: np.where(np.arange(len(labels)) % 10 == 0, 1 - labels, labels)),  # every tenth corrected
        (4, lambda labels: labels * 2 + np.arange(len(labels)) // 2 % 2),  # each class in two
    ],
)
def test_the_same_label_under_another_name_is_no_way_round_the_total(
    tmp_path: Path, classes: int, values: Callable[[np.ndarray], np.ndarray]
) -> None:
    ids, policy = IDS[:1000], ReleasePolicy(max_epsilon=1.0, compose=True)
    first = made(tmp_path / "vault", ids)
    first.release(randomized_response(1.0), policy=policy)
    batches = [(ids, values(value_of(ids)), None)]
    other = Vault.create(tmp_path / "vault/other", classes=classes, batches=batches)
    again = randomized_response(1.0, classes)
    with pytest.raises(VaultError, match="1,000 records were released before"):
        other.release(again)
    with pytest.raises(VaultError, match="would bring the records to ε = 2 in all"):
        other.release(again, policy=policy)
    with pytest.raises(VaultError, match="1,000 records were released before"):
        other.check_release(again, ids, policy=ReleasePolicy())
    other.release(again, compose=True)
    for vault in (first, other):
        assert vault.total(ids).epsilon == vault.ledger().epsilon_per_record == 2
        assert vault.statement()["epsilon_per_record"] == 2


def test_labels_that_become_the_same_by_corrections_are_the_same(tmp_path: Path) -> None:
    ids, noise = IDS[:1000], np.random.default_rng(0).integers(0, 2, 1000)
    first = made(tmp_path / "vault", ids)
    other = Vault.create(tmp_path / "vault/other", batches=[(ids, noise, None)])
    first.release(laplace(1.0))
    other.add([(ids, value_of(ids), None)])
    with pytest.raises(VaultError, match="released before"):
        other.release(laplace(1.0))
    other.add([(ids, noise, None)])  # what was the same once stays so
    with pytest.raises(VaultError, match="released before"):
        other.release(laplace(1.0))


def test_people_and_records_of_the_same_label_add_up(tmp_path: Path) -> None:
    ids = IDS[:100]
    plain = made(tmp_path / "vault", ids)
    people = Vault.create(tmp_path / "vault/aligned", counts_people=True, batches=[(["x-1", "x-2"], [0, 1], None)])
    people.keep_file_records(ids, value_of(ids))
    people.release(laplace(0.5))
    assert plain.total(None).epsilon == 0.5
    with pytest.raises(VaultError, match="100 records were released before"):
        plain.release(laplace(1.0))
    plain.release(laplace(1.0), compose=True)
    assert plain.total(None).epsilon == people.total(None).epsilon == 1.5
    assert people.ledger().largest_unit == Spent(1.5, 0.0, True, 1, "person")
