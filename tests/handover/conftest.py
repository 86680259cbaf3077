from pathlib import Path

import numpy as np
import pytest

from tpsl.net.certificates import create_authority, issue
from tpsl.vault import Vault


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate folders of a label party, of a feature party, and of the label party of another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    for authority, parties in (("authority", ("label", "feature")), ("stranger", ("label",))):
        create_authority(folder / authority)
        for party in parties:
            place = folder / party if authority == "authority" else folder / "foreign"
            issue(folder / authority, place, party, label=party == "label")
    return folder


@pytest.fixture
def make_vault(tmp_path: Path):
    """Return what makes a vault of n records whose ids are texts, in a folder of its own."""

    def made(records: int = 500, classes: int = 2) -> Vault:
        labels = np.random.default_rng(3).integers(0, classes, records)
        ids = [f"record {number:04d}" for number in range(records)]
        return Vault.create(tmp_path / "vault", classes=classes, batches=[(ids, labels, None)])

    return made
