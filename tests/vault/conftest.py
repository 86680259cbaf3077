from pathlib import Path

import numpy as np
import pytest

from tpsl.vault import Vault


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test makes its vault."""
    return tmp_path / "vault"


@pytest.fixture
def labels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, 1000)


@pytest.fixture
def vault(folder: Path, labels: np.ndarray) -> Vault:
    """A vault of 1000 records with ids 0..999."""
    made = Vault.create(folder, batches=[(np.arange(1000), labels, None)])
    yield made
    made.close()
