"""Limits of people, who come again under new ids with every alignment."""

from pathlib import Path

import numpy as np
import pytest

from tpsl.mechanisms import identity, laplace
from tpsl.vault import ReleasePolicy, Vault, VaultError

FIRST = [f"first-{number:03d}" for number in range(4)]
SECOND = [f"second-{number:03d}" for number in range(3)]
ONE, TWO = ReleasePolicy(max_epsilon=1.0), ReleasePolicy(max_epsilon=2.0)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault.create(tmp_path / "vault", counts_people=True, batches=[(FIRST, [0, 1, 0, 1], None)])
    made.release(laplace(1.0), ids=FIRST, policy=ONE)
    return made


def test_what_alignments_spend_adds_up_for_everybody(vault: Vault) -> None:
    """Whom a record is about is not known, so that anyone may be in both."""
    with pytest.raises(VaultError, match="would bring people to ε = 2 in all, more than the ε = 1 that"):
        vault.check_release(laplace(1.0), SECOND, policy=ONE)
    vault.check_release(laplace(1.0), SECOND, policy=TWO)
    vault.add([(SECOND, [0, 1, 1], None)])
    head = vault.head()
    with pytest.raises(VaultError, match="would bring people to ε = 2 in all, more than the ε = 1 that"):
        vault.release(laplace(1.0), ids=SECOND[:1], policy=ONE)
    assert vault.head() == head
    assert vault.release(laplace(1.0), ids=SECOND, policy=TWO).released == 3
    assert vault.total(FIRST[:1]).epsilon == vault.total(SECOND).epsilon == 2
    largest = vault.ledger().largest_unit
    assert largest is not None and (largest.epsilon, largest.records) == (2.0, 2)
    assert vault.statement()["largest_unit"]["epsilon"] == 2.0
    assert vault.verify() == []


def test_records_of_one_alignment_are_about_different_people(vault: Vault) -> None:
    more = ["first-007", "first-008"]
    vault.check_release(laplace(1.0), more, policy=ONE)
    vault.add([(more, [0, 1], None)])
    vault.release(laplace(0.5), ids=more[:1], policy=ONE)
    assert (
        vault.total(more[:1]).epsilon == 0.5 and vault.total(more[1:]).epsilon == 0 and vault.total(FIRST).epsilon == 1
    )


def test_records_of_one_unit_in_one_alignment_add_up(tmp_path: Path) -> None:
    units = ["Ann", "Ann", "Bob", "first-003"]
    with Vault.create(tmp_path / "vault", counts_people=True, batches=[(FIRST, [0, 1, 0, 1], units)]) as vault:
        for act in (vault.check_release, vault.release):
            with pytest.raises(VaultError, match="would bring people to ε = 2 in all"):
                act(laplace(1.0), ids=FIRST, policy=ONE)
        vault.release(laplace(1.0), ids=FIRST, policy=TWO)
        assert vault.total(FIRST[:1]).epsilon == 2 and vault.total(FIRST[2:]).epsilon == 1


def test_what_was_released_already_is_not_counted_twice(vault: Vault) -> None:
    vault.check_release(laplace(1.0), FIRST, policy=ONE)
    assert vault.release(laplace(1.0), ids=FIRST, policy=ONE).released == 0
    composing = ReleasePolicy(max_epsilon=1.4, compose=True)
    with pytest.raises(VaultError, match=r"would bring people to ε = 1\.5 in all"):
        vault.release(laplace(0.5), ids=FIRST[:1], policy=composing)


def test_one_record_without_privacy_may_be_anybodys(vault: Vault) -> None:
    vault.add([(SECOND, [0, 1, 1], None)])
    vault.release(identity(), ids=SECOND[:1], policy=ReleasePolicy(not_private=True))
    assert not vault.total(FIRST).private


def test_a_total_is_the_most_that_any_choice_of_records_adds_up_to(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = [f"a{number % 3}-{number:03d}" for number in range(60)]
    spent = np.zeros(60)
    with Vault.create(tmp_path / "vault", counts_people=True, batches=[(ids, [0] * 60, None)]) as vault:
        for epsilon in (0.5, 0.25, 0.125):
            rows = rng.permutation(60)[:9]
            policy = ReleasePolicy(1e9, compose=True)
            vault.release(laplace(epsilon), ids=[ids[row] for row in rows], policy=policy)
            spent[rows] += epsilon
        largest = [spent[np.arange(60) % 3 == alignment].max() for alignment in range(3)]
        for row in range(60):
            others = sum(largest) - largest[row % 3]
            assert vault.total([ids[row]]).epsilon == spent[row] + others
        assert vault.total(None).epsilon == sum(largest)


def test_a_vault_says_whether_it_counts_people(vault: Vault, tmp_path: Path) -> None:
    with Vault.open(vault.path) as again, Vault.create(tmp_path / "other", apart="other people") as other:
        assert again.counts_people and not other.counts_people
    with Vault.create(tmp_path / "empty", counts_people=True, apart="other people") as empty:
        assert empty.ledger().largest_unit is None and empty.total(None).epsilon == 0
