import math

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import auc, roc_auc_score, roc_curve

from tpsl import metrics
from tpsl.attacks.scoring import ROC_FPR, Ceiling, Evaluation, roc_at, tpr_at_fpr
from tpsl.metrics import auc_with_variance


def records(seed: int, n: int, shift: float = 1.0, share: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < share).astype(np.int64)
    return rng.normal(size=n) + shift * labels, labels


@pytest.mark.parametrize("ties", [False, True])
def test_auc_and_variance_are_those_of_the_other_metrics(ties: bool) -> None:
    scores, labels = records(0, 400)
    scores = scores.round(0) if ties else scores
    area, variance = auc_with_variance(scores, labels == 1)
    assert area == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    expected = metrics.auc(scores, labels == 1)
    assert expected.high - area == pytest.approx(1.959963985 * math.sqrt(variance), rel=1e-6)


def test_a_single_positive_has_a_wide_interval_not_none() -> None:
    scores, positive = np.array([0.0, 1.0, 2.0, 3.0]), np.array([False, False, True, False])
    area, variance = auc_with_variance(scores, positive)
    assert area == pytest.approx(2 / 3)
    assert variance >= 2 / 9


def test_tpr_at_fpr_is_read_off_the_roc_curve() -> None:
    scores, labels = records(1, 5000)
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    for limit in (0.001, 0.01, 0.2):
        assert tpr_at_fpr(scores, labels == 1, limit) == pytest.approx(tpr[fpr <= limit].max())


def test_tpr_of_a_hard_guess_is_0_where_its_fpr_is_too_large() -> None:
    labels = np.array([0] * 100 + [1] * 100)
    guesses = np.where(np.arange(200) % 10 == 0, 1 - labels, labels).astype(float)
    assert tpr_at_fpr(guesses, labels == 1, 0.01) == 0.0
    assert tpr_at_fpr(guesses, labels == 1, 0.1) == pytest.approx(0.9)


def test_auc_is_the_mean_over_batches_and_one_class_batches_are_left_out() -> None:
    evaluation = Evaluation()
    areas = []
    for seed in range(5):
        scores, labels = records(seed, 200)
        evaluation.add(scores * 10.0**seed, labels, 0)  # each batch has a scale of its own
        areas.append(roc_auc_score(labels, scores))
    evaluation.add(np.array([1.0, 2.0]), np.array([1, 1]), 0)
    result = evaluation.result("x", "transcript")
    assert result.auc == pytest.approx(np.mean(areas))
    assert (result.batches, result.one_class_batches, result.records) == (5, 1, 1000)
    assert result.as_dict()["auc_folded"] == result.auc


def test_folded_auc_and_nothing_to_score() -> None:
    evaluation = Evaluation()
    scores, labels = records(0, 500)
    evaluation.add(-scores, labels, 0)
    found = evaluation.result("x", "transcript")
    assert found.auc < 0.5 < found.auc_folded == 1 - found.auc
    empty = Evaluation().result("x", "transcript").as_dict()
    assert empty["auc"] is empty["auc_low"] is empty["tpr_at_fpr_0_01"] is None


def test_a_score_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        Evaluation().add(np.array([np.nan, 1.0]), np.array([0, 1]), 0)


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_interval_covers_the_true_auc(epochs: int) -> None:
    """Of 300 experiments of 10 batches about 95 % cover it; with epochs that show the same scores again, not fewer."""
    truth = 0.7602499389065233  # Φ(1/√2)
    covered, trials = 0, 300
    for trial in range(trials):
        evaluation = Evaluation()
        batches = [records(1000 * trial + batch, 60) for batch in range(10)]
        for epoch in range(epochs):
            for scores, labels in batches:
                evaluation.add(scores, labels, epoch)
        result = evaluation.result("x", "transcript")
        covered += result.auc_low <= truth <= result.auc_high
    low, high = binom.interval(1 - 1e-6, trials, 0.95)
    assert low <= covered <= high


def test_k_classes_are_compared_in_pairs() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    scores = rng.normal(size=(600, 3))
    scores[np.arange(600), labels] += 1.0
    for hard in (False, True):
        evaluation = Evaluation(hard=hard)
        evaluation.add(scores, labels, 0)
        areas = []
        for a, b in ((0, 1), (0, 2), (1, 2)):
            pair = np.isin(labels, (a, b))
            difference = scores[pair, b] - scores[pair, a]
            areas.append(roc_auc_score(labels[pair] == b, np.sign(difference) if hard else difference))
        result = evaluation.result("x", "transcript")
        assert result.auc == pytest.approx(np.mean(areas))
        assert math.isnan(result.tpr_at_fpr_0_01)


@pytest.mark.parametrize("ties", [False, True])
def test_a_roc_curve_is_that_of_scikit_learn(ties: bool) -> None:
    scores, labels = records(3, 3000)
    scores = scores.round(0) if ties else scores
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    assert roc_at(scores, labels == 1, fpr)[1:-1] == pytest.approx(
        [tpr[fpr == at].max() for at in fpr][1:-1], abs=1e-12
    )
    assert roc_at(scores, labels == 1, np.array([0.0, 1.0])) == pytest.approx([tpr[fpr == 0].max(), 1.0])


@pytest.mark.parametrize("classes", [2, 3])
def test_the_area_below_the_kept_roc_curve_is_the_auc(classes: int) -> None:
    evaluation, rng = Evaluation(), np.random.default_rng(4)
    for _ in range(4):
        labels = rng.integers(0, classes, 800)
        scores = rng.normal(size=(800, classes)) + np.eye(classes)[labels]
        evaluation.add(scores if classes > 2 else scores[:, 1], labels, 0)
    result = evaluation.result("x", "transcript")
    assert auc(ROC_FPR, result.roc) == pytest.approx(result.auc, abs=2e-3)
    assert result.roc[-1] == 1.0
    assert result.as_dict()["roc"]["fpr"] == ROC_FPR.tolist()


def test_above_a_ceiling_means_by_more_than_chance() -> None:
    evaluation = Evaluation()
    evaluation.add(*records(0, 4000), 0)
    found = evaluation.result("x", "transcript")
    margin = (found.auc_high - found.auc_low) / 2
    assert not found.above_ceiling  # none is known
    assert found.as_dict()["ceiling"] is None
    assert not found.beside(Ceiling.proved(found.auc - 1.9 * margin)).above_ceiling
    assert found.beside(Ceiling.proved(found.auc - 2.1 * margin)).above_ceiling
    low = found.auc - 2.1 * margin
    assert not found.beside(Ceiling(low, low - margin, low + margin)).above_ceiling


def test_a_hard_guess_between_equal_scores_is_a_coin() -> None:
    """Half of the records of each class have equal scores: their guesses are right half of the time."""
    labels = np.arange(20_000) % 3
    scores = np.eye(3)[labels] * (np.random.default_rng(1).random(20_000) < 0.5)[:, None]
    evaluation = Evaluation(hard=True)
    evaluation.add(scores, labels, 0)
    assert evaluation.result("x", "transcript").auc == pytest.approx(0.75, abs=0.02)
