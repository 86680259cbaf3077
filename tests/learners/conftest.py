"""Records with a known dependence of labels on features, and learners' view of them."""

from collections.abc import Callable

import numpy as np
import pytest

from tpsl.data.features import Features
from tpsl.learners.learner import LearnerRecords
from tpsl.learners.noisy_targets import NoisyTargets
from tpsl.mechanisms import Mechanism
from tpsl.training.schedule import held_out

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
