"""The map of a statistic: vectors of norm 1 for every input, a width that follows from the noise, saved and rebuilt."""

import numpy as np
import pytest
import torch

from tpsl.heads.feature_map import FeatureMap, Purpose, water_filled
from tpsl.mechanisms import DEFAULT_BOUND, clip_rows

CODES = np.arange(3, 6)


def inputs(count: int = 2000) -> np.ndarray:
    draws = np.random.default_rng(0)
    return np.column_stack([draws.normal(size=(count, 3)), draws.integers(0, 20, (count, 3))]).astype(np.float32)


def learned(noise: float = 1.0, **purpose: object) -> FeatureMap:
    return FeatureMap.learn(inputs(), CODES, Purpose(noise, random_features=32, **purpose))  # type: ignore[arg-type]


def integers(feature_map: FeatureMap, rows: np.ndarray) -> np.ndarray:
    return np.concatenate(list(feature_map.integers(rows, DEFAULT_BOUND)))


def test_the_vectors_use_the_bound_and_keep_to_it() -> None:
    q = integers(learned(), inputs())
    lengths = np.sqrt(np.square(q.astype(np.int64)).sum(axis=1))
    assert lengths.max() <= DEFAULT_BOUND
    assert lengths.min() > 0.99 * DEFAULT_BOUND
    assert (clip_rows(q, DEFAULT_BOUND, "l2") == q).all()
    # The first coordinate of z is a constant: that of φ tells how long z is.
    z = learned()(torch.from_numpy(inputs())).numpy()
    assert (z[:, 0] == np.float32(0.06)).all()
    assert np.allclose(q[:, 0] / DEFAULT_BOUND, 0.999 * 0.06 / np.linalg.norm(z, axis=1), atol=1e-4)


def test_much_noise_on_few_records_gives_the_base_rate_more_of_the_budget() -> None:
    found = [learned(noise).kappa for noise in (0.1, 2.0, 5.0, 50.0)]
    assert found == pytest.approx([0.06, 0.06, 0.15, 0.3])
    assert FeatureMap(learned(5.0).state_dict()).kappa == pytest.approx(0.15)


def test_for_laplace_noise_it_is_the_other_norm_and_a_narrow_map() -> None:
    narrow = learned(norm="l1")
    q = integers(narrow, inputs())
    assert 0.98 * DEFAULT_BOUND < np.abs(q).sum(axis=1).max() <= DEFAULT_BOUND
    assert narrow.width < learned().width


def test_the_width_follows_from_the_noise_and_the_classes() -> None:
    widths = [learned(noise).width for noise in (0.1, 1.0, 10.0, 100.0)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 4 * widths[-1] > 0
    assert learned(10.0, classes=20).width < learned(10.0).width


def test_hostile_rows_are_harmless() -> None:
    rows = inputs(5)
    rows[0], rows[1], rows[2], rows[3] = np.nan, np.inf, -3e38, 0.0
    q = integers(learned(), rows)
    assert np.sqrt(np.square(q.astype(np.int64)).sum(axis=1)).max() <= DEFAULT_BOUND


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_of_constant_records_the_base_rate_is_left(value: float) -> None:
    rows = np.full((100, 6), value, np.float32)
    feature_map = FeatureMap.learn(rows, CODES, Purpose(1.0, random_features=4))
    assert feature_map.width == 1
    assert (integers(feature_map, rows) == round(0.999 * DEFAULT_BOUND)).all()


def test_saved_and_rebuilt_it_is_the_same() -> None:
    feature_map = learned()
    rebuilt = FeatureMap({name: tensor.clone() for name, tensor in feature_map.state_dict().items()})
    assert (integers(rebuilt, inputs()) == integers(feature_map, inputs())).all()
    assert all(
        torch.equal(one, other)
        for one, other in zip(rebuilt.weight_covariances(), feature_map.weight_covariances(), strict=True)
    )
    assert (integers(learned(), inputs()) == integers(feature_map, inputs())).all()
    assert not torch.equal(learned(seed=1).components, feature_map.components)


def test_gains_leave_the_least_unknown() -> None:
    variances = torch.tensor([1.0, 0.3, 0.1, 1e-6], dtype=torch.float64)
    purpose, records = Purpose(20.0), 1000
    gains = water_filled(variances, purpose, records)
    assert float(gains.sum()) == pytest.approx(1)
    assert gains.tolist() == sorted(gains.tolist(), reverse=True)
    assert gains[3] == 0

    def unknown(shares: torch.Tensor) -> float:
        information = purpose.information(records)
        s = 1 / information + purpose.blur(records) / shares.clamp(min=1e-12)
        return float((variances * s / (variances + s)).sum())

    least = unknown(gains)
    for other in np.random.default_rng(3).dirichlet(np.ones(4), 200):
        assert unknown(torch.from_numpy(other)) > least


def test_what_is_expected_of_the_log_odds_adds_up() -> None:
    """With the weights of the prior the log-odds vary by 1, less what the map leaves out."""
    feature_map = learned(0.01)
    covariance = sum(feature_map.weight_covariances())
    z = feature_map(torch.from_numpy(inputs())).double()[:, 1:]
    assert isinstance(covariance, torch.Tensor)
    expected = float(torch.einsum("ni,ij,nj->n", z, covariance[1:, 1:], z).mean())
    assert expected == pytest.approx(1.0, abs=0.05)
