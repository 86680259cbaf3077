from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpsl.data.features import Features
from tpsl.handover.objective import NoisyTargets
from tpsl.handover.trees import LearnerRecords
from tpsl.mechanisms import Mechanism
from tpsl.net.certificates import create_authority, issue
from tpsl.run.schedule import held_out
from tpsl.vault import Vault

MakeRecords = Callable[..., tuple[LearnerRecords, np.ndarray]]


@pytest.fixture
def make_records() -> MakeRecords:
    """Return a function of a mechanism: records of its classes, the first `count` with noisy labels, and all labels."""

    def make(
        mechanism: Mechanism, count: int, *, seed: int = 0, tested: int = 4000
    ) -> tuple[LearnerRecords, np.ndarray]:
        rng, n, k = np.random.default_rng(seed), count + tested, mechanism.classes
        numeric = rng.normal(size=(n, 3)).astype(np.float32)
        codes = np.stack([rng.integers(0, 6, n), rng.integers(6, 46, n)], axis=1).astype(np.int32)
        effects = rng.normal(size=(46, k))
        z = effects[codes].sum(axis=1) * 0.7
        z[:, 1] += 1.5 * (np.abs(numeric[:, 0]) > 1) + numeric[:, 1] * (numeric[:, 2] > 0)
        z[:, 0] += 1.0
        z += rng.gumbel(size=z.shape)
        y = z.argmax(axis=1)
        features = Features(codes, numeric, 46, ("small", "large"), ("a", "b", "c"))
        rows = np.arange(count, dtype=np.int64)
        targets = NoisyTargets(mechanism, (mechanism.release(y[:count], rng=seed).outcomes,))
        return LearnerRecords(features, rows, targets, held_out(count, 0.1, seed), seed), y

    return make


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate folders of a label party, of a feature party, and of the label party of another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    for authority, parties in (("authority", ("label", "feature")), ("stranger", ("label",))):
        create_authority(folder / authority)
        for party in parties:
            place = folder / party if authority == "authority" else folder / "foreign"
            issue(folder / authority, place, party)
    return folder


@pytest.fixture
def make_vault(tmp_path: Path):
    """Return what makes a vault of n records whose ids are texts, in a folder of its own."""

    def made(records: int = 500, classes: int = 2) -> Vault:
        labels = np.random.default_rng(3).integers(0, classes, records)
        ids = [f"record {number:04d}" for number in range(records)]
        return Vault.create(tmp_path / "vault", classes=classes, batches=[(ids, labels, None)])

    return made
