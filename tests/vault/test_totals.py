"""What some records have spent: in one vault, exactly, and over several."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import DiscreteLaplace, gaussian, identity, laplace, randomized_response
from tpsl.vault import LedgerTotal, StatisticPlan, Vault, VaultError, id_index, sums_over

IDS = [f"r{number}" for number in range(70_000)]  # more than a chunk


def made(path: Path, ids: list[str] = IDS) -> Vault:
    return Vault.create(path, batches=[(ids, np.arange(len(ids)) % 2, None)])


def test_the_total_is_of_the_records_that_are_asked_for(tmp_path: Path) -> None:
    vault = made(tmp_path / "vault")
    vault.release(laplace(0.1), ids=IDS[:66_000])
    vault.release(randomized_response(0.2), ids=IDS[65_000:], compose=True)
    assert vault.total(IDS[:10]) == LedgerTotal(laplace(0.1).epsilon, 0.0, True, 10)
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
    assert (found.known, found.differing, found.released, found.first_differing) == (100, 2, 30, "r7")
    assert vault.compare(IDS[:200][::-1], labels[::-1]).first_differing == "r50"
    assert not found.same
    assert found.similar  # two corrections: the same records
    assert not vault.compare(IDS[:100], 1 - labels[:100]).similar
    noise = np.random.default_rng(0).integers(0, 2, 100)
    assert not vault.compare(IDS[:100], noise).similar
    assert vault.compare(IDS[60:90], labels[60:90]).same
    assert not vault.compare(IDS[100:200], labels[100:]).same  # none in common


def test_the_sum_over_vaults_is_made_for_each_record(tmp_path: Path) -> None:
    """Three vaults in a chain: each shares a record with the next, and no record is in all of them."""
    shares = {"a": IDS[:100], "b": IDS[99:200], "c": IDS[199:300], "far": IDS[500:600]}
    for name, ids in shares.items():
        made(tmp_path / name, ids).release(laplace(1.0))
    found = sums_over([tmp_path / name for name in shares])
    assert {path.name: total.total.epsilon for path, total in found.items()} == {"a": 2, "b": 2, "c": 2, "far": 1}
    assert [path.name for path in found[tmp_path / "b"].parts] == ["a", "b", "c"]
    assert [path.name for path in found[tmp_path / "far"].parts] == ["far"]


def test_the_sum_over_vaults_composes_labels_with_statistics(tmp_path: Path) -> None:
    labels, statistic, apart = (made(tmp_path / name, IDS[:100]) for name in ("labels", "statistic", "apart"))
    plan = StatisticPlan(DiscreteLaplace(200), 100, 2)
    labels.release(laplace(1.0), ids=IDS[:60])
    statistic.release_statistic(plan, IDS[50:100], [np.ones((50, 2), np.int64)])
    found = sums_over([labels.path, statistic.path, apart.path])[apart.path]
    assert (found.total.epsilon, found.total.delta, found.total.private) == (1.5, 0.0, True)
    assert {path.name: part.epsilon for path, part in found.parts.items()} == {"labels": 1.0, "statistic": 0.5}
    assert statistic.total(IDS[:50]).epsilon == 0.0


def test_vaults_in_another_order_hold_the_same_records(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one", IDS[:50]), made(tmp_path / "other", IDS[:50][::-1])
    one.release(laplace(1.0), ids=IDS[:10])
    other.release(laplace(2.0), ids=IDS[10:50])
    assert sums_over([one.path, other.path])[one.path].total.epsilon == 2
    other.release(identity(), ids=IDS[:1])
    found = sums_over([one.path, other.path])[one.path]
    assert (found.total.epsilon, found.total.private) == (math.inf, False)


def test_vaults_that_grow_while_they_are_compared_are_summed_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = made(tmp_path / "one", IDS[:50]), made(tmp_path / "other", IDS[40:90])
    one.release(laplace(1.0))
    other.release(laplace(1.0))
    ids_at = Vault.ids_at

    def grown(vault: Vault, start: int, stop: int) -> object:
        for each, new in ((one, IDS[90:95]), (other, IDS[:10])):
            each.add([(new, np.zeros(len(new)), None)])
            each.release(laplace(1.0))
        return ids_at(vault, start, stop)

    monkeypatch.setattr(Vault, "ids_at", grown)
    found = sums_over([one.path, other.path])
    assert {path.name: (each.total.epsilon, each.total.records) for path, each in found.items()} == {
        "one": (2.0, 50),
        "other": (2.0, 50),
    }
