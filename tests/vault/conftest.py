from pathlib import Path

import numpy as np
import pytest

from tpsl.vault import Vault
from tpsl.vault import key as keys
from tpsl.vault.key import VARIABLE, Key, make_key_file, read_key_file


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


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Key:
    """A key file, which this process uses."""
    monkeypatch.setattr(keys, "_typed", None)
    file = tmp_path / "key"
    make_key_file(file)
    monkeypatch.setenv(VARIABLE, str(file))
    return read_key_file(file)


@pytest.fixture(params=["plain", "encrypted"])
def plain_and_encrypted(request: pytest.FixtureRequest) -> None:
    """The test runs twice: without a key and with one."""
    if request.param == "encrypted":
        request.getfixturevalue("key")
