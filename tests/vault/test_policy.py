"""The label party's veto: what a release may cost at most, counted with all that was released before."""

from pathlib import Path

import pytest

from tpsl.mechanisms import Mechanism, identity, laplace, randomized_response
from tpsl.vault import ReleasePolicy, Vault, VaultError

IDS = [f"r{number}" for number in range(10)]


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault.create(tmp_path / "vault", batches=[(IDS, [number % 2 for number in range(10)], None)])


def entries(vault: Vault) -> int:
    return len(vault.ledger().entries)


@pytest.mark.parametrize(
    ("mechanism", "options", "policy", "words"),
    [
        (identity(), {}, ReleasePolicy(), "NOT PRIVATE"),
        (laplace(1.0), {"seed": 3}, ReleasePolicy(), "NOT PRIVATE"),
        (laplace(11.0), {}, ReleasePolicy(), "ε = 11 in all, more than the ε = 10"),
        (laplace(11.0), {}, ReleasePolicy(not_private=True), "ε = 11 in all, more than the ε = 10"),
        (laplace(1.0), {"draws": 2}, ReleasePolicy(max_epsilon=1.5), "ε = 2 in all, more than the ε = 1.5"),
    ],
)
def test_what_is_not_permitted_is_refused_before_anything_is_drawn(
    vault: Vault, mechanism: Mechanism, options: dict[str, int], policy: ReleasePolicy, words: str
) -> None:
    before = entries(vault)
    for act in (vault.release, vault.check_release):
        with pytest.raises(VaultError, match=words):
            act(mechanism, ids=IDS, policy=policy, **options)
    assert entries(vault) == before


def test_what_was_released_before_counts(vault: Vault) -> None:
    vault.release(laplace(5.0), ids=IDS[:3], policy=ReleasePolicy(max_epsilon=5.0))
    composing = ReleasePolicy(max_epsilon=5.5, compose=True)
    with pytest.raises(VaultError, match=r"ε = 6 in all, more than the ε = 5\.5"):
        vault.release(randomized_response(1.0), ids=IDS, policy=composing)
    # The others have room, and a stranger too.
    vault.check_release(randomized_response(1.0), [*IDS[3:], "stranger"], policy=composing)
    assert vault.release(randomized_response(1.0), ids=IDS[3:], policy=composing).released == 7
    # Asking again draws nothing, and is not permitted to a label party that would not have permitted it then.
    with pytest.raises(VaultError, match="ε = 5 in all, more than the ε = 2"):
        vault.release(laplace(5.0), ids=IDS[:3], policy=ReleasePolicy(max_epsilon=2.0))
    with pytest.raises(
        VaultError, match=r"3 records were released before under something else .* --set local.compose=true"
    ):
        vault.check_release(randomized_response(1.0), IDS[:3], policy=ReleasePolicy())


def test_not_private_has_to_be_asked_for(vault: Vault) -> None:
    permitting = ReleasePolicy(not_private=True, compose=True)
    assert vault.release(identity(), ids=IDS[:2], policy=permitting).released == 2
    # What is known stays known, whatever noise comes later.
    with pytest.raises(VaultError, match="NOT PRIVATE"):
        vault.release(laplace(1.0), ids=IDS, policy=ReleasePolicy(compose=True))
    assert vault.release(laplace(1.0), ids=IDS, policy=permitting).released == 10


def test_a_limit_that_is_none_is_refused() -> None:
    for limit in (-1.0, float("nan")):
        with pytest.raises(VaultError, match="a number from 0 on"):
            ReleasePolicy(max_epsilon=limit)
