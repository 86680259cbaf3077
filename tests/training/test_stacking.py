from __future__ import annotations

import math

import numpy as np
import pytest

from tpsl.training.stacking import committee_weights


def some_likelihoods(candidates: int, records: int, spread: float, seed: int = 0) -> list[np.ndarray]:
    return list(spread * np.random.default_rng(seed).normal(size=(candidates, records)) - 1.0)


@pytest.mark.parametrize(("records", "spread"), [(1, 0.5), (50, 0.01), (2000, 0.3), (5000, 3.0)])
def test_the_weights_are_where_nothing_is_gained_by_shifting_weight(records: int, spread: float) -> None:
    rows = some_likelihoods(7, records, spread)
    rows[2] = rows[2] - 0.5 * spread
    weights = committee_weights(rows)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights > 0).all()
    likelihood = np.exp(np.array(rows)).T
    gain = (likelihood / (likelihood @ weights)[:, None]).sum(axis=0) + 1 / weights
    assert gain == pytest.approx(np.full(7, gain.mean()), rel=1e-3)


def test_two_candidates_by_hand() -> None:
    # One record, twice as likely under the first: maximise ln(2w + (1-w)) + ln w + ln(1-w), so 3w² = 1.
    rows = [np.array([math.log(2)]), np.array([0.0])]
    assert committee_weights(rows)[0] == pytest.approx(1 / math.sqrt(3), abs=1e-5)


def test_labels_that_say_nothing_give_the_plain_mean() -> None:
    assert committee_weights([np.full(1000, -0.7)] * 4) == pytest.approx([0.25] * 4)


def test_labels_that_say_much_leave_the_best() -> None:
    rows = [np.full(10_000, -0.5), np.full(10_000, -0.6)]
    assert committee_weights(rows)[0] > 0.99


def test_candidates_that_complement_each_other_share() -> None:
    odd = np.where(np.arange(2000) % 2, 0.0, -2.0)
    always_second = np.full(2000, -1.2)  # better on the whole than neither, worse than their mixture
    weights = committee_weights([odd, -2.0 - odd, always_second])
    assert weights[0] == pytest.approx(weights[1], rel=1e-3)
    assert weights[2] < 0.02


def test_likelihoods_that_are_not_finite_count_nothing_and_tiny_ones_do_not_hurt() -> None:
    rows = [np.full(10, -1e4), np.full(10, -1e4), np.array([math.nan] * 10), np.array([0.0] * 9 + [-math.inf])]
    assert committee_weights(rows) == pytest.approx([0.5, 0.5, 0.0, 0.0])
    with pytest.raises(ValueError, match="all of them diverged"):
        committee_weights(rows[2:])
