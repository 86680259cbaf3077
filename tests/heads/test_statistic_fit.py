"""The head of a statistic: logistic regression without noise, the base rate under much of it, and k classes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tpsl.heads.feature_map import Purpose
from tpsl.heads.statistic_fit import FitReport, StatisticHead, fit_statistic, variance_components
from tpsl.mechanisms import DEFAULT_BOUND, NoNoise, StatisticNoise, fit_noise
from tpsl.metrics import auc
from tpsl.vault import NoisyStatistic, StatisticPlan, Vault

Fitted = tuple[StatisticHead, FitReport]
RECORDS = 6000


def records(classes: int = 2, strength: float = 1.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Four numbers, labels drawn from log-odds that are linear in them, and the weights of these."""
    draws = np.random.default_rng(4)
    inputs = draws.normal(size=(RECORDS, 4)).astype(np.float32)
    weights = draws.normal(size=(4, classes)) * strength
    if classes == 2:
        weights[:, 0] = 0
    labels = (inputs @ weights + draws.gumbel(size=(RECORDS, classes)) - np.arange(classes) % 2).argmax(axis=1)
    return inputs, labels, weights


@pytest.fixture
def fitted(tmp_path: Path) -> Callable[..., Fitted]:
    def fit(inputs: np.ndarray, labels: np.ndarray, noise: StatisticNoise, random_features: int = 0) -> Fitted:
        classes = max(2, int(labels.max()) + 1)
        purpose = Purpose(noise.deviation / DEFAULT_BOUND, noise.norm, classes, random_features)
        ids, reports = np.arange(len(inputs)), list[FitReport]()

        def release(width: int, vectors: Iterator[np.ndarray]) -> NoisyStatistic:
            plan = StatisticPlan(noise, DEFAULT_BOUND, width, seed=1)
            with Vault.create(tmp_path / "vault", classes=classes, batches=[(ids, labels, None)]) as vault:
                return vault.release_statistic(plan, ids, vectors)

        head = fit_statistic(inputs, np.arange(0), purpose, release, reports.append)
        return head, reports[0]

    return fit


def gaussian(epsilon: float, classes: int = 2) -> StatisticNoise:
    return fit_noise("gaussian", epsilon, 1e-6, DEFAULT_BOUND, classes)


def test_without_noise_it_is_weighted_logistic_regression(fitted: Callable[..., Fitted]) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    inputs, labels, weights = records()
    head, report = fitted(inputs, labels, NoNoise())
    z = head.map(torch.from_numpy(inputs)).numpy()
    regression = linear_model.LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000)
    regression.fit(z[:, 1:], labels, sample_weight=1 / np.linalg.norm(z, axis=1))
    own = torch.logit(head.probabilities(torch.from_numpy(inputs)).double()).numpy()
    # The prior of the weights shrinks them a little: it counts as much as a few of the records.
    assert np.allclose(own, regression.decision_function(z[:, 1:]), rtol=0.02, atol=0.02)
    # So it finds the weights that the labels were drawn with.
    found = np.linalg.lstsq(np.column_stack([inputs, np.ones(RECORDS)]), own, rcond=None)[0]
    assert np.abs(found[:4] - weights[:, 1]).max() < 0.15
    assert report.reliable
    assert report.effective_labels == pytest.approx(RECORDS, rel=1e-3)


def test_few_records_and_little_epsilon_still_tell_the_base_rate(fitted: Callable[..., Fitted]) -> None:
    inputs, labels, _ = records()
    inputs, labels = inputs[:2000], labels[:2000]
    head, report = fitted(inputs, labels, gaussian(0.5))
    assert report.reliable
    predicted = head.probabilities(torch.from_numpy(inputs)).mean().item()
    # With κ = 0.06 the noise alone would move it by 0.067.
    sigma = gaussian(0.5).deviation / DEFAULT_BOUND
    assert sigma / (2000 * 0.06) > 0.06 and sigma / (2000 * head.map.kappa) < 0.02
    assert abs(predicted - labels.mean()) < 0.04


def test_noise_shrinks_it_to_the_base_rate(fitted: Callable[..., Fitted], tmp_path: Path) -> None:
    inputs, labels, _ = records()
    spread, worth = [], []
    for number, epsilon in enumerate((8.0, 0.5, 0.002)):
        if number:
            (tmp_path / "vault").rename(tmp_path / f"vault {number}")
        head, report = fitted(inputs, labels, gaussian(epsilon))
        spread.append(float(torch.logit(head.probabilities(torch.from_numpy(inputs))).std()))
        worth.append(report.effective_labels)
        assert report.reliable == (epsilon > 0.1)
    assert min(spread[:2]) > 2.0
    assert spread[2] == pytest.approx(0, abs=1e-5)
    assert RECORDS > worth[0] > worth[1] > worth[2] > 0
    assert "nothing reliable can be learned, the head is the base rate" in str(report)


def test_labels_that_depend_on_nothing_give_nothing(fitted: Callable[..., Fitted]) -> None:
    inputs, labels, _ = records()
    shuffled = np.random.default_rng(5).permutation(labels)
    head, report = fitted(inputs, shuffled, gaussian(2.0), random_features=16)
    assert not report.reliable
    probabilities = head.probabilities(torch.from_numpy(inputs))
    assert float(probabilities.std()) < 1e-5
    assert float(probabilities.mean()) == pytest.approx(labels.mean(), abs=0.1)


def test_random_features_find_what_no_line_does(fitted: Callable[..., Fitted]) -> None:
    inputs, _, _ = records()
    labels = (inputs[:, 0] * inputs[:, 1] + 0.3 * np.random.default_rng(6).normal(size=RECORDS) > 0).astype(np.int64)
    head, report = fitted(inputs, labels, gaussian(2.0), random_features=64)
    assert report.reliable
    assert auc(head.probabilities(torch.from_numpy(inputs)).numpy(), labels == 1).value > 0.85


@pytest.mark.parametrize(("classes", "accuracy"), [(10, 0.4), (100, 0.08)])
def test_many_classes(fitted: Callable[..., Fitted], classes: int, accuracy: float) -> None:
    inputs, labels, _ = records(classes, strength=3.0)
    labels[:classes] = np.arange(classes)
    head, report = fitted(inputs, labels, gaussian(8.0, classes))
    probabilities = head.probabilities(torch.from_numpy(inputs))
    assert report.reliable
    assert probabilities.shape == (RECORDS, classes)
    assert torch.allclose(probabilities.sum(dim=1), torch.ones(RECORDS), atol=1e-5)
    assert float((probabilities.argmax(dim=1).numpy() == labels).mean()) > accuracy


def test_saved_and_rebuilt_it_predicts_the_same(fitted: Callable[..., Fitted]) -> None:
    inputs, labels, _ = records()
    head, _ = fitted(inputs, labels, gaussian(1.0), random_features=8)
    rows = torch.from_numpy(inputs)
    assert torch.equal(StatisticHead.of(head.state_dict()).probabilities(rows), head.probabilities(rows))


def test_constant_records_give_the_base_rate(fitted: Callable[..., Fitted]) -> None:
    _, labels, _ = records()
    head, report = fitted(np.zeros((RECORDS, 4), np.float32), labels, gaussian(1.0))
    assert not report.reliable
    expected = pytest.approx(labels.mean(), abs=0.02)
    assert float(head.probabilities(torch.zeros(1, 4))[0]) == expected


def test_variance_components_are_those_the_numbers_were_drawn_with() -> None:
    generator = torch.Generator().manual_seed(0)
    size = 300
    parts = [torch.zeros(size, size, dtype=torch.float64) for _ in range(3)]
    for number, part in enumerate(parts[:2]):
        part.diagonal()[number::3] = 1.0
    parts[2].diagonal()[2::3] = 1.0
    drawn = torch.randn(size, generator=generator, dtype=torch.float64)
    observed = drawn * (1 + sum(v * part.diagonal() for v, part in zip((9.0, 0.0, 1.0), parts, strict=True))).sqrt()
    found, _ = variance_components(observed, torch.eye(size, dtype=torch.float64), parts)
    assert float(found[0]) == pytest.approx(9.0, rel=0.4)
    assert float(found[1]) < 0.3
    assert float(found[2]) == pytest.approx(1.0, rel=0.6)
