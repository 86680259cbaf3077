"""Limits of units, where the same people come again under new ids."""

from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import identity, laplace
from tpsl.vault import ReleasePolicy, Vault, VaultError

FIRST = ["a0", "a1", "a2", "a3"]
SECOND = ["b0", "b1", "b2"]
ONE, TWO = ReleasePolicy(max_epsilon=1.0), ReleasePolicy(max_epsilon=2.0)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault.create(tmp_path / "vault", by_unit=True, batches=[(FIRST, [0, 1, 0, 1], ["Ann", "Bob", "Cy", "a3"])])
    made.release(laplace(1.0), ids=FIRST, policy=ONE)
    return made


def test_a_release_that_brings_a_unit_above_the_limit_is_refused(vault: Vault) -> None:
    units = ["Cy", "Dan", "b2"]
    with pytest.raises(VaultError, match="would bring a unit to ε = 2 in all, more than the ε = 1 that"):
        vault.check_release(laplace(1.0), SECOND, units=units, policy=ONE)
    vault.check_release(laplace(1.0), SECOND, units=units, policy=TWO)
    vault.check_release(laplace(1.0), SECOND[1:], units=units[1:], policy=ONE)
    vault.add([(SECOND, [0, 1, 1], units)])
    head = vault.head()
    with pytest.raises(VaultError, match="would bring a unit to ε = 2 in all, more than the ε = 1 that"):
        vault.release(laplace(1.0), ids=SECOND, policy=ONE)
    assert vault.head() == head
    assert vault.release(laplace(1.0), ids=SECOND, policy=TWO).released == 3
    assert vault.total(SECOND).epsilon == 2 and vault.total(["b1"]).epsilon == 1
    largest = vault.ledger().largest_unit
    assert largest is not None and (largest.epsilon, largest.records) == (2.0, 2)
    assert vault.verify() == []


def test_records_of_one_unit_in_one_release_add_up(vault: Vault) -> None:
    with pytest.raises(VaultError, match="would bring a unit to ε = 2 in all"):
        vault.check_release(laplace(1.0), SECOND[:2], units=["Eve", "Eve"], policy=ONE)


def test_what_was_released_already_is_not_counted_twice(vault: Vault) -> None:
    vault.check_release(laplace(1.0), FIRST, units=["Ann", "Bob", "Cy", "a3"], policy=ONE)
    assert vault.release(laplace(1.0), ids=FIRST, policy=ONE).released == 0
    composing = ReleasePolicy(max_epsilon=1.4, compose=True)
    with pytest.raises(VaultError, match=r"would bring a unit to ε = 1\.5 in all"):
        vault.release(laplace(0.5), ids=FIRST[:1], policy=composing)


def test_a_unit_without_privacy_stays_without(vault: Vault) -> None:
    vault.add([(SECOND, [0, 1, 1], ["Cy", "Dan", "b2"])])
    vault.release(identity(), ids=SECOND[:1], policy=ReleasePolicy(not_private=True))
    assert not vault.total(FIRST).private and vault.total(FIRST[:2]).private


def test_totals_of_units_are_those_that_records_add_up_to(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids, units = [f"r{number}" for number in range(300)], [f"u{number}" for number in rng.integers(0, 40, 300)]
    with Vault.create(tmp_path / "vault", by_unit=True, batches=[(ids, [0] * 300, units)]) as vault:
        parts = [(0.5, rng.permutation(300)[:90]), (0.25, rng.permutation(300)[:120])]
        spent = dict.fromkeys(units, 0.0)
        for epsilon, rows in parts:
            vault.release(laplace(epsilon), ids=[ids[row] for row in rows], policy=ReleasePolicy(1e9, compose=True))
            for row in rows:
                spent[units[row]] += epsilon
        for asked in (ids, ids[:1], ids[100:103]):
            assert vault.total(asked).epsilon == max(spent[units[ids.index(id)]] for id in asked)


def test_records_about_units_are_found(vault: Vault) -> None:
    about = vault.about(["Cy", "Dan", "Cy", "Ann"])
    assert sorted(about.tolist()) == [0, 2] and vault.count_released(about) == 2
    assert vault.about(["Dan"]).tolist() == [] and vault.about([]).tolist() == []


def test_a_vault_says_whether_it_goes_by_unit(vault: Vault, tmp_path: Path) -> None:
    with Vault.open(vault.path) as again, Vault.create(tmp_path / "other") as other:
        assert again.by_unit and not other.by_unit
