"""The measures against scikit-learn, slow direct computations and simulation."""

from __future__ import annotations

import dataclasses
import math
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import log_loss as reference_log_loss
from sklearn.metrics import roc_auc_score
from tests.peak_memory import peak_bytes

from tpsl import metrics, spill
from tpsl.metrics import accuracy, auc, calibration_error, log_loss, macro_auc, precision_recall
from tpsl.run.evaluation import evaluate

scored_records = st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=40).filter(
    lambda records: len({positive for _, positive in records}) == 2
)


@given(scored_records)
def test_auc_with_many_ties_is_that_of_scikit_learn(records: list[tuple[int, bool]]) -> None:
    scores, positive = zip(*records, strict=True)
    assert auc(scores, positive).value == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


def test_auc_of_many_records_is_that_of_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    positive = generator.random(100_000) < 0.2
    scores = generator.normal(positive * 0.7, 1.0)
    assert auc(scores, positive).value == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


def test_auc_knows_infinite_scores() -> None:
    """A likelihood ratio may be infinite."""
    assert auc([-math.inf, 0.0, math.inf, math.inf], [0, 0, 1, 1]).value == 1.0
    assert auc([-math.inf, math.inf, 0.0, math.inf], [0, 0, 1, 1]).value == pytest.approx((1 + 0 + 1 + 0.5) / 4)


def test_auc_of_equal_scores_is_one_half_and_certain_ones_are_0_and_1() -> None:
    assert auc([3.0] * 10, [0, 1] * 5).value == 0.5
    assert auc([0.0, 1.0], [0, 1]).value == 1.0
    assert auc([1.0, 0.0], [0, 1]).value == 0.0


@given(scored_records, st.sampled_from([0.5, 0.95, 0.999999]))
def test_interval_has_the_variance_of_delong(records: list[tuple[int, bool]], confidence: float) -> None:
    """DeLong et al. (1988), by their definition: all pairs of a positive and a negative, O(mn)."""
    scores, positive = zip(*records, strict=True)
    wins = np.array(
        [
            [1.0 if p > n else 0.5 if p == n else 0.0 for n, is_positive in records if not is_positive]
            for p, is_positive in records
            if is_positive
        ]
    )
    m, n = wins.shape
    # One record of a class says nothing about the spread: the largest possible one is taken.
    largest = wins.mean() * (1 - wins.mean())
    variance = wins.mean(axis=1).var(ddof=1) / m if m > 1 else largest
    variance += wins.mean(axis=0).var(ddof=1) / n if n > 1 else largest
    margin = stats.norm.ppf((1 + confidence) / 2) * math.sqrt(variance)
    result = auc(scores, positive, confidence)
    assert result.value == pytest.approx(wins.mean(), abs=1e-12)
    assert result.low == pytest.approx(max(0.0, wins.mean() - margin), abs=1e-9)
    assert result.high == pytest.approx(min(1.0, wins.mean() + margin), abs=1e-9)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    """2000 simulated test sets with a known AUC: 95 % intervals cover it in 93 to 97 % of them."""
    generator = np.random.default_rng(1)
    positive = np.arange(400) < 120
    shift = 0.8
    truth = stats.norm.cdf(shift / math.sqrt(2))
    covered = 0
    for _ in range(2000):
        result = auc(generator.normal(positive * shift), positive)
        covered += result.low <= truth <= result.high
    assert 0.93 < covered / 2000 < 0.97


def test_auc_reads_well() -> None:
    assert str(auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])) == "0.7500 [0.0570, 1.0000]"


@pytest.mark.parametrize(
    ("scores", "positive", "complaint"),
    [
        ([0.1, 0.2], [1, 1], "needs both classes, got 2 positives and 0 negatives"),
        ([0.1, 0.2], [0, 0], "needs both classes, got 0 positives and 2 negatives"),
        ([], [], "needs both classes, got 0 positives and 0 negatives"),
        ([0.1, math.nan, 0.2], [0, 1, 1], "score 1 is NaN"),
        ([0.1, 0.2], [0, 1, 1], r"scores \(2,\) and labels \(3,\) do not fit together"),
        ([[0.1, 0.2]], [[0, 1]], r"scores \(1, 2\) and labels \(1, 2\) do not fit together"),
    ],
)
def test_an_auc_that_does_not_exist_is_refused(scores: list[float], positive: list[int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        auc(scores, positive)


def softmax_rows(n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return probabilities, (probabilities.cumsum(axis=1) < generator.random((n, 1))).sum(axis=1)


def test_macro_auc_is_that_of_scikit_learn() -> None:
    probabilities, labels = softmax_rows(5000, 4, seed=2)
    expected = roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert macro_auc(probabilities, labels).value == pytest.approx(expected, abs=1e-12)


def test_macro_auc_leaves_out_classes_without_records() -> None:
    probabilities, labels = softmax_rows(2000, 4, seed=3)
    kept = labels != 2
    expected = np.mean([roc_auc_score(labels[kept] == j, probabilities[kept][:, j]) for j in (0, 1, 3)])
    assert macro_auc(probabilities[kept], labels[kept]).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("positives", [1, 2, 150, 299])
def test_macro_auc_of_two_classes_has_the_interval_of_the_auc(positives: int) -> None:
    generator = np.random.default_rng(positives)
    labels = np.arange(300) < positives
    scores = (generator.integers(0, 20, 300) + 4 * labels) / 30  # with ties
    plain, macro = auc(scores, labels), macro_auc(scores, labels.astype(int))
    assert dataclasses.astuple(macro) == pytest.approx(dataclasses.astuple(plain), abs=1e-12)


def test_the_interval_of_a_macro_auc_covers_it_as_often_as_it_says() -> None:
    """The AUCs of the classes hang together, so that their variances alone would give another interval."""
    whole = macro_auc(*softmax_rows(400_000, 4, seed=5)).value
    found = [macro_auc(*softmax_rows(250, 4, seed=seed)) for seed in range(100, 500)]
    missed = sum(not area.low <= whole <= area.high for area in found)
    # 400 samples at 5 %: between 3 and 44 misses, up to a chance of one in a million.
    assert 3 <= missed <= 44
    widths = np.mean([area.high - area.low for area in found]) / (2 * NormalDist().inv_cdf(0.975))
    assert widths == pytest.approx(np.std([area.value for area in found]), rel=0.15)


def test_a_class_with_one_record_widens_the_interval_of_the_macro_auc() -> None:
    probabilities, labels = softmax_rows(400, 3, seed=6)
    kept = np.append(np.flatnonzero(labels != 2), np.flatnonzero(labels == 2)[:1])
    area, without = macro_auc(probabilities[kept], labels[kept]), macro_auc(probabilities, labels)
    assert area.low < area.value < area.high and area.high - area.low > 2 * (without.high - without.low)


def test_macro_auc_of_one_class_is_refused() -> None:
    probabilities, _ = softmax_rows(10, 3, seed=4)
    with pytest.raises(ValueError, match="an AUC needs two classes, all 10 labels are 1"):
        macro_auc(probabilities, np.ones(10, dtype=int))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_loss_is_that_of_scikit_learn(dtype: type) -> None:
    probabilities, labels = softmax_rows(5000, 5, seed=5)
    expected = reference_log_loss(labels, probabilities)
    assert log_loss(probabilities.astype(dtype), labels) == pytest.approx(expected, rel=1e-6)
    positive = (labels == 0).astype(float)
    expected = reference_log_loss(positive, probabilities[:, 0])
    assert log_loss(probabilities[:, 0].astype(dtype), positive) == pytest.approx(expected, rel=1e-6)


def test_log_loss_of_a_certain_mistake_is_large_but_finite() -> None:
    assert log_loss(np.array([0.0]), [1]) == pytest.approx(-math.log(1e-15))
    assert log_loss(np.array([1.0]), [1]) == 0.0


def test_accuracy_counts_the_most_probable_class() -> None:
    assert accuracy(np.array([0.9, 0.2, 0.6, 0.4]), [1, 0, 0, 1]) == 0.5
    assert accuracy(np.array([[0.2, 0.5, 0.3], [0.1, 0.2, 0.7]]), [1, 1]) == 0.5


def test_calibrated_predictions_have_a_small_calibration_error() -> None:
    generator = np.random.default_rng(6)
    p = generator.random(200_000)
    assert calibration_error(p, generator.random(200_000) < p) < 0.01
    probabilities, labels = softmax_rows(200_000, 3, seed=7)
    assert calibration_error(probabilities, labels) < 0.01


@pytest.mark.parametrize("offset", [-0.2, 0.1, 0.2])
def test_shifted_predictions_have_their_shift_as_calibration_error(offset: float) -> None:
    generator = np.random.default_rng(8)
    p = 0.25 + generator.random(200_000) / 2
    labels = generator.random(200_000) < p
    assert calibration_error(p + offset, labels) == pytest.approx(abs(offset), abs=0.01)


def test_overconfidence_of_more_classes_is_seen() -> None:
    probabilities, labels = softmax_rows(100_000, 4, seed=9)
    confident = probabilities**3 / (probabilities**3).sum(axis=1, keepdims=True)
    gap = confident.max(axis=1).mean() - accuracy(confident, labels)
    assert gap > 0.1
    assert calibration_error(confident, labels) == pytest.approx(gap, abs=0.02)


def test_calibration_error_by_hand() -> None:
    """Two bins of two: |0.15 - 0.5| and |0.75 - 1|, each half of the records."""
    assert calibration_error(np.array([0.1, 0.9, 0.2, 0.6]), [0, 1, 1, 1], bins=2) == pytest.approx(0.3)


def test_calibration_error_does_not_depend_on_the_order_of_equal_predictions() -> None:
    """One prediction for all, right on average, labels sorted: the error is zero, not one half."""
    assert calibration_error(np.full(1000, 0.5), np.repeat([0, 1], 500)) == pytest.approx(0.0, abs=1e-12)
    generator = np.random.default_rng(10)
    p = generator.integers(0, 6, 1000) / 5
    labels = generator.integers(0, 2, 1000)
    order = generator.permutation(1000)
    assert calibration_error(p, labels) == pytest.approx(calibration_error(p[order], labels[order]), abs=1e-12)


@pytest.mark.parametrize(
    ("measure", "bad"),
    list(
        product(
            [log_loss, accuracy, calibration_error, macro_auc],
            [
                ([0.1, math.nan], [0, 1], "record 1 has the probabilities nan"),
                ([[0.5, 0.5], [math.inf, 0.0]], [0, 1], r"record 1 has the probabilities \[inf  0.\]"),
                ([0.1, 0.2, 0.3], [0, 2, 1], "record 1 has the label 2"),
                ([0.1, 0.2, 0.3], [0, 1, -1], "record 2 has the label -1"),
                ([0.1, 0.2], [0.5, 1.0], "record 0 has the label 0.5"),
                ([0.1, 0.2], [0.0, math.nan], "record 1 has the label nan"),
                ([0.1, 0.2], [0, 1, 1], r"probabilities \(2,\) and labels \(3,\) do not fit together"),
                ([], [], r"probabilities \(0,\) and labels \(0,\) do not fit together"),
            ],
        )
    ),
    ids=lambda value: getattr(value, "__name__", None) or value[2][:30],
)
def test_records_that_cannot_be_measured_are_named(measure, bad) -> None:  # type: ignore[no-untyped-def]
    probabilities, labels, complaint = bad
    with pytest.raises(ValueError, match=complaint):
        measure(np.array(probabilities), labels)


@pytest.mark.parametrize("classes", [2, 3])
def test_measures_do_not_depend_on_the_size_of_a_block(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    by_class, labels = generator.dirichlet(np.ones(classes), 100).round(1), generator.integers(0, classes, 100)
    predicted = by_class[:, 1] if classes == 2 else by_class

    def measured() -> list[float]:
        area = auc(predicted, labels) if classes == 2 else macro_auc(predicted, labels)
        measures = [measure(predicted, labels) for measure in (log_loss, accuracy, calibration_error)]
        return [area.value, area.low, area.high, *measures]

    whole = measured()
    monkeypatch.setattr(metrics, "_AT_ONCE", 7)
    monkeypatch.setattr(spill, "ROWS_AT_ONCE", 10)
    assert measured() == pytest.approx(whole, abs=1e-12)
    labels[71] = classes
    for measure in (log_loss, accuracy, calibration_error):
        with pytest.raises(ValueError, match=f"record 71 has the label {classes}"):
            measure(predicted, labels)


@pytest.mark.parametrize("digits", [7, 2, 0])
def test_measures_of_two_classes_take_no_memory_for_each_record(digits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_AT_ONCE", 1 << 12)
    monkeypatch.setattr(spill, "ROWS_AT_ONCE", 1 << 14)

    def peak(count: int) -> int:
        generator = np.random.default_rng(1)
        labels, predicted = generator.integers(0, 2, count), generator.random(count, np.float32).round(digits)
        return peak_bytes(lambda: evaluate(predicted, labels))

    assert peak(400_000) - peak(100_000) < 2 * 300_000  # the largest piece of many is a little larger


def test_an_interval_that_reaches_half_is_no_better_than_guessing() -> None:
    assert [metrics.no_better_than_guessing(low) for low in (0.41, 0.5, 0.501)] == [True, True, False]
    assert not metrics.no_better_than_guessing(float("nan"))


def test_precision_and_recall_by_hand() -> None:
    scores, positive = np.array([0.9, 0.8, 0.8, 0.3, 0.1]), np.array([True, False, True, True, False])
    assert precision_recall(scores, positive) == [(1.0, 3 / 5), (2 / 3, 2 / 3), (1 / 3, 1.0)]
