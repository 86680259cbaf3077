"""The wide part finds effects and pairs in noisy labels, shrinks noise, and scores no record by its own label."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl import metrics
from tpsl.data import out_of_core
from tpsl.data.features import Features
from tpsl.heads import wide_part
from tpsl.heads.backfitting import fit_additive
from tpsl.heads.wide_part import SCORE_FIELD, AdditiveModel, Group, cross_fit, with_scores

LEVELS = (4, 6, 300)


def table(rows: int, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)
    offsets = np.cumsum([0, *LEVELS])
    categorical = np.stack([rng.integers(0, k, rows) + offsets[f] for f, k in enumerate(LEVELS)], axis=1)
    numeric = rng.normal(size=(rows, 2)).astype(np.float32)
    names = tuple(f"c{f}" for f in range(len(LEVELS)))
    return Features(categorical.astype(np.int32), numeric, int(offsets[-1]), names, ("n0", "n1"))


def log_odds(features: Features, *, pair: float = 0.0) -> np.ndarray:
    first, second = features.categorical[:, 0], features.categorical[:, 1] - LEVELS[0]
    crossed = np.where((first + second) % 2 == 0, 1.0, -1.0)
    return -1.0 + 0.8 * (first - 1.5) + 0.7 * features.numeric[:, 0] + pair * crossed


def labels(odds: np.ndarray, seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).random(len(odds)) < 1 / (1 + np.exp(-odds))).astype(np.float64)


def noisy(truth: np.ndarray, epsilon: float, seed: int = 2) -> np.ndarray:
    """Unbiased estimates from randomised response."""
    keep = np.exp(epsilon) / (1 + np.exp(epsilon))
    told = np.where(np.random.default_rng(seed).random(len(truth)) < keep, truth, 1 - truth)
    return np.asarray((told - (1 - keep)) / (2 * keep - 1))


def pairs(model: AdditiveModel) -> list[Group]:
    return [group for group in model.groups if len(group.axes) == 2]


def every(features: Features) -> np.ndarray:
    return np.arange(len(features), dtype=np.int64)


def test_without_noise_it_is_a_logistic_regression() -> None:
    features = table(60_000)
    model = fit_additive(features, every(features), labels(log_odds(features)))
    effects = [group.effects.numpy() for group in model.groups]
    np.testing.assert_allclose(np.diff(effects[0][:4]), 0.8, atol=0.1)
    np.testing.assert_allclose(model.slopes, [0.7, 0.0], atol=0.05)
    assert np.abs(effects[1]).max() < 0.05
    assert effects[2].std() < 0.08  # half of what the means of 200 labels vary by
    scores = model.scores(features, every(features))
    assert np.corrcoef(scores, log_odds(features))[0, 1] > 0.99
    assert abs(scores.mean() - log_odds(features).mean()) < 0.1


def test_noise_shrinks_what_says_little() -> None:
    """A field of 300 categories without any effect keeps next to none, though each of its means is far from 0."""
    features = table(30_000)
    estimates = noisy(labels(log_odds(features)), 0.5)
    means = np.bincount(features.categorical[:, 2], weights=estimates)[-300:] / 100
    model = fit_additive(features, every(features), estimates)
    assert means.std() / 0.2 > 0.9  # in log-odds
    assert model.groups[2].effects.std() < 0.15
    test = table(20_000, seed=9)
    auc = metrics.auc(model.scores(test, every(test)), labels(log_odds(test), 9) == 1).value
    assert auc > metrics.auc(log_odds(test), labels(log_odds(test), 9) == 1).value - 0.02


def test_a_pair_is_found_if_there_is_one_and_not_in_noise() -> None:
    features = table(30_000)
    crossed = fit_additive(features, every(features), noisy(labels(log_odds(features, pair=1.0)), 1.0))
    assert [axis.column for axis in pairs(crossed)[0].axes] == [0, 1]
    test = table(20_000, seed=9)
    truth = labels(log_odds(test, pair=1.0), 9) == 1
    additive_alone = metrics.auc(log_odds(test), truth).value
    assert metrics.auc(crossed.scores(test, every(test)), truth).value > additive_alone + 0.02
    plain = fit_additive(features, every(features), noisy(labels(log_odds(features)), 1.0))
    assert len(pairs(plain)) <= 2  # of ten; each has a chance of a fortieth


def test_the_own_label_has_no_part_in_the_score_of_a_record() -> None:
    features = table(3000)
    rows = every(features)[:2500]
    estimates = noisy(labels(log_odds(features)), 0.5)[:2500]
    _, scores = cross_fit(features, rows, estimates, seed=3)
    changed = estimates.copy()
    changed[7] += 1000.0
    model, other = cross_fit(features, rows, changed, seed=3)
    assert scores[7] == other[7]
    assert (scores[rows] != other[rows]).mean() > 0.5
    np.testing.assert_array_equal(other[2500:], model.scores(features, every(features)[2500:]))


def test_of_many_records_some_are_fitted_and_the_model_scores_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_part, "MOST_RECORDS", 2000)
    monkeypatch.setattr(wide_part, "_MANY_RECORDS", 1000)
    features = table(3000)
    rows, estimates = every(features)[:2500], noisy(labels(log_odds(features)), 0.5)[:2500]
    model, scores = cross_fit(features, rows, estimates, seed=3)
    by_model = scores == model.scores(features, every(features))
    drawn = every(features)[:2500][~by_model[:2500]]
    assert 1950 < len(drawn) <= 2000, "the two models may agree on a record to the last bit"
    assert by_model[2500:].all()
    left_out, fitted = np.flatnonzero(by_model)[0], drawn[0]
    for row, changes_all in ((left_out, False), (fitted, True)):
        changed = estimates.copy()
        changed[row] += 1000.0
        other = cross_fit(features, rows, changed, seed=3)[1]
        assert scores[row] == other[row]
        assert (scores != other).mean() > 0.5 if changes_all else np.array_equal(scores, other)


@pytest.mark.parametrize(("many", "fits"), [(300, 6), (299, 3)])
def test_progress_is_told_from_the_first_fit_to_the_last(many: int, fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_part, "_MANY_RECORDS", many)
    features, told = table(300), list[tuple[int, int, str]]()
    cross_fit(features, every(features), labels(log_odds(features)), 0, lambda *now: told.append(now))
    assert told[0] == (0, 0, "fitting the wide part"), "before anything is loaded"
    assert told[1:] == [(done, 13 * fits, "fitting the wide part") for done in range(1, 13 * fits + 1)]


def test_features_on_disk_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features, estimates = table(3000), noisy(labels(log_odds(table(3000), pair=1.0)), 2.0)
    _, scores = cross_fit(features, every(features), estimates, seed=0)
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path))
    monkeypatch.setattr(out_of_core, "LARGE_BYTES", 0)
    model, mapped_scores = cross_fit(features, every(features), estimates, seed=0)
    np.testing.assert_array_equal(scores, mapped_scores)
    assert pairs(model)
    scored = with_scores(features, mapped_scores)
    assert out_of_core.is_mapped(scored.numeric)
    np.testing.assert_array_equal(scored.numeric, np.concatenate([features.numeric, scores[:, None]], axis=1))


def test_scores_of_pure_noise_say_nothing_of_it() -> None:
    """In-sample scores would follow the estimates they were made of; out-of-fold ones do not."""
    features = table(5000)
    estimates = noisy(np.zeros(5000), 0.3)
    model, scores = cross_fit(features, every(features), estimates, seed=0)
    inside = np.corrcoef(model.scores(features, every(features)), estimates)[0, 1]
    assert inside > 0.05
    assert np.corrcoef(scores, estimates)[0, 1] < 0.02


def test_it_survives_a_file_and_takes_categories_that_training_did_not_see() -> None:
    features = table(4000)
    seen = every(features)[features.categorical[:, 2] < LEVELS[0] + LEVELS[1] + 200]
    model = fit_additive(features, seen, noisy(labels(log_odds(features, pair=1.0)), 2.0)[seen])
    assert pairs(model)
    again = AdditiveModel.from_tensors(model.tensors())
    np.testing.assert_array_equal(again.scores(features, every(features)), model.scores(features, every(features)))
    assert np.isfinite(model.scores(features, every(features))).all()


def test_it_is_a_function_of_features_estimates_and_seed() -> None:
    features = table(1500)
    estimates = noisy(labels(log_odds(features)), 1.0)
    first, second, other = (cross_fit(features, every(features), estimates, seed)[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_one_class_alone_gives_finite_scores(rate: float) -> None:
    features = table(200)
    _, scores = cross_fit(features, every(features), np.full(200, rate), seed=0)
    assert np.isfinite(scores).all()
    assert (scores < 0).all() if rate == 0.0 else (scores > 0).all()


def test_no_features_at_all_leave_the_base_rate() -> None:
    empty = Features(np.empty((50, 0), np.int32), np.empty((50, 0), np.float32), 0, (), ())
    _, scores = cross_fit(empty, every(empty), np.repeat([0.0, 1.0], 25), seed=0)
    assert np.abs(scores).max() < 1.0


def test_two_records_with_two_estimates_are_needed() -> None:
    features = table(10)
    with pytest.raises(ValueError, match="10 records with 9 estimates"):
        fit_additive(features, every(features), np.zeros(9))
    with pytest.raises(ValueError, match="1 records"):
        fit_additive(features, every(features)[:1], np.zeros(1))


def test_the_score_is_the_last_number() -> None:
    features = table(5)
    scored = with_scores(features, np.arange(5, dtype=np.float32))
    assert scored.numeric_fields == ("n0", "n1", SCORE_FIELD)
    np.testing.assert_array_equal(scored.numeric[:, -1], np.arange(5))


@pytest.mark.parametrize(("rows", "folds"), [(2, 1), (1000, 5), (1001, 2), (3000, 2)])
def test_each_fold_is_fitted_without_its_own_records(rows: int, folds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_part, "_MANY_RECORDS", 1000)
    monkeypatch.setattr(wide_part, "MOST_RECORDS", 2000)
    read: list[int] = []

    def fit(features: Features, fitted: np.ndarray, *rest: Any) -> AdditiveModel:
        read.append(len(fitted))
        return fit_additive(features, np.resize(fitted, max(2, len(fitted))), np.zeros(max(2, len(fitted))))

    monkeypatch.setattr("tpsl.heads.backfitting.fit_additive", fit)
    features = table(rows)
    cross_fit(features, every(features), labels(log_odds(features)), 0)
    assert len(read) == 1 + folds and read[0] == min(rows, 2000)
    assert sum(read) == read[0] * folds
