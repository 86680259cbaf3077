import copy
import dataclasses

import numpy as np
import pytest

from tpsl.mechanisms import laplace
from tpsl.vault import NoisyLabels, Vault


def test_only_a_vault_makes_noisy_labels(vault: Vault) -> None:
    with pytest.raises(TypeError, match="come out of a vault only"):
        NoisyLabels(laplace(1.0), (np.zeros(3, np.uint8),), True)
    vault.release(laplace(1.0))
    noisy = vault.noisy_labels(laplace(1.0), [1, 2])
    with pytest.raises(TypeError):
        dataclasses.replace(noisy, draws=(np.zeros(3, np.uint8),), _made_by=None)
    with pytest.raises(AttributeError):
        noisy.private = False
    with pytest.raises(ValueError, match="read-only"):
        noisy.draws[0][0] = 1


def test_taking_rows_keeps_everything_else(vault: Vault) -> None:
    vault.release(laplace(1.0), draws=2)
    noisy = vault.noisy_labels(laplace(1.0), np.arange(1000), draws=2)
    for rows in (np.array([5, 3, 3]), slice(10, 20), np.arange(1000) % 2 == 0, np.array([], int)):
        taken = noisy.take(rows)
        assert all((part == whole[rows]).all() for part, whole in zip(taken.draws, noisy.draws, strict=True))
        assert (len(taken), taken.epsilon, taken.private) == (len(noisy.draws[0][rows]), 2.0, True)
        with pytest.raises(ValueError, match="read-only"):
            taken.draws[0][...] = 1


def test_it_holds_neither_labels_nor_ids(vault: Vault) -> None:
    vault.release(laplace(1.0))
    noisy = vault.noisy_labels(laplace(1.0), np.arange(1000))
    assert {field.name for field in dataclasses.fields(noisy)} == {"mechanism", "draws", "private", "_made_by"}
    assert not hasattr(noisy, "__dict__")
    assert copy.copy(noisy).draws[0] is noisy.draws[0]
