from collections.abc import Iterator

import numpy as np
import pytest

from tpsl import metrics
from tpsl.attacks.known_labels import DirectionAttack, KnownLabels, LearnedAttack, draw_known, feature_similarity
from tpsl.data.features import Features
from tpsl.run.transcript import TranscriptStep


def test_known_labels_are_drawn_from_each_class() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    rows = np.arange(10, 100)
    known = draw_known(rows, labels, 15, seed=3)
    assert np.bincount(known.labels).tolist() == [15, 10]
    assert (known.labels == labels[known.rows]).all()
    assert np.isin(known.rows, rows).all()
    assert (draw_known(rows, labels, 15, seed=3).rows == known.rows).all()
    assert len(np.unique(known.rows)) == 25


def test_rows_without_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="3 known rows have 2 labels"):
        KnownLabels(np.arange(3), np.array([0, 1]))


def turning_steps(labels: np.ndarray, steps: int) -> Iterator[TranscriptStep]:
    """Gradients point along a direction that turns by half a circle over the run, against it for label 0."""
    rng = np.random.default_rng(0)
    for step, rows in enumerate(np.split(np.arange(len(labels)), steps)):
        angle = np.pi * step / steps
        direction = np.array([np.cos(angle), np.sin(angle)])
        size = rng.uniform(0.1, 5.0, len(rows)) * (2 * labels[rows] - 1)
        gradients = (size[:, None] * direction + 0.01 * rng.normal(size=(len(rows), 2))).astype(np.float32)
        yield TranscriptStep(step, rows, gradients, gradients)


def test_the_direction_attack_follows_a_turning_direction() -> None:
    labels = np.random.default_rng(1).integers(0, 2, 2000)
    positives = np.flatnonzero(labels == 1)[::20]
    attack = DirectionAttack(turning_steps(labels, 20), KnownLabels(positives, labels[positives]))
    for seen in turning_steps(labels, 20):
        assert metrics.auc(attack(seen), labels[seen.rows] == 1).value == 1.0


def test_the_direction_attack_needs_a_known_positive() -> None:
    labels = np.zeros(100, dtype=np.int64)
    with pytest.raises(ValueError, match="known positives"):
        DirectionAttack(turning_steps(labels, 4), KnownLabels(np.arange(5), labels[:5]))


def features(n: int) -> tuple[Features, np.ndarray]:
    rng = np.random.default_rng(2)
    numbers = rng.normal(size=(n, 2)).astype(np.float32)
    categories = rng.integers(0, 3, (n, 1)).astype(np.int32)
    labels = (numbers[:, 0] + (categories[:, 0] == 2) > 0.5).astype(np.int64)
    return Features(categories, numbers, 3, ("c",), ("a", "b")), labels


def test_few_labels_and_the_features_are_enough_to_learn_something() -> None:
    held, labels = features(3000)
    known = draw_known(np.arange(3000), labels, 30)
    attack = LearnedAttack(feature_similarity({"feature": held}, known), known, 2)
    rows = np.arange(3000)
    empty = np.zeros((3000, 0), dtype=np.float32)
    scores = attack(TranscriptStep(0, rows, empty, empty))
    assert metrics.auc(scores, labels == 1).value > 0.9


def test_a_learned_attack_is_ridge_regression_on_centred_features() -> None:
    """For a linear kernel the dual solution equals the primal one."""
    held, labels = features(50)
    known = KnownLabels(np.arange(20), labels[:20])
    attack = LearnedAttack(feature_similarity({"feature": held}, known), known, 2)
    x = np.concatenate([held.numeric, np.eye(3)[held.categorical[:, 0]]], axis=1).astype(np.float64)
    x -= x[:20].mean(axis=0)
    ridge = np.trace(x[:20] @ x[:20].T) / 20
    target = labels[:20] - labels[:20].mean()
    primal = np.linalg.solve(x[:20].T @ x[:20] + ridge * np.eye(5), x[:20].T @ target)
    empty = np.zeros((50, 0), dtype=np.float32)
    found = attack(TranscriptStep(0, np.arange(50), empty, empty))
    np.testing.assert_allclose(found - found.mean(), x @ primal - (x @ primal).mean(), atol=1e-6)
