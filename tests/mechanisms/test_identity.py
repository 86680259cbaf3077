"""No noise: the label itself, and never called private."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tpsl.attacks.auc_prediction import predicted_auc
from tpsl.mechanisms import TOTAL, identity


@pytest.mark.parametrize("classes", [2, 3, 300])
def test_labels_come_out_as_they_went_in(classes: int) -> None:
    labels = np.random.default_rng(0).integers(0, classes, 200_000)
    release = identity(classes).release(labels)
    assert np.array_equal(release.outcomes, labels)
    head = labels[:50]
    expected = head.astype(float) if classes == 2 else np.eye(classes)[head]
    assert np.array_equal(identity(classes).release(head).noisy, expected)


@pytest.mark.parametrize("rng", [None, 1])
def test_it_is_never_private(rng: int | None) -> None:
    release = identity().release([0, 1], rng)
    assert math.isinf(identity().epsilon)
    assert release.private is False
    assert str(release) == repr(release) == "release of 2 labels by none (ε = inf) — NOT PRIVATE (no noise)"


def test_the_release_does_not_share_memory_with_the_labels() -> None:
    labels = np.array([0, 1, 1], dtype=np.uint8)
    release = identity().release(labels)
    labels[:] = 0
    assert release.outcomes.tolist() == [0, 1, 1]


def test_moments_weights_and_likelihood() -> None:
    mechanism = identity(3)
    assert [sum(row) for row in mechanism.weights.tolist()] == [TOTAL] * 3
    assert mechanism.mean(2).tolist() == [0.0, 0.0, 1.0]
    assert mechanism.variance(2).tolist() == [0.0, 0.0, 0.0]
    assert mechanism.log_likelihood([1]).tolist() == [[-math.inf, 0.0, -math.inf]]
    assert (identity().mean(1), identity().variance(1)) == (1.0, 0.0)


def test_every_attack_succeeds() -> None:
    predicted = predicted_auc(identity())
    assert predicted.shortest_distance == predicted.best_score == predicted.ceiling == 1.0
