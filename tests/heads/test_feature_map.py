"""The map of a statistic: codes of fields, the expansion, and vectors of norm 1 whose width follows from the noise."""

import numpy as np
import pytest
import torch

from tpsl.data.features import Features
from tpsl.heads.feature_map import LARGEST_CODE, CodeBook, Expansion, FeatureMap, Purpose, water_filled
from tpsl.mechanisms import DEFAULT_BOUND, clip_rows

CODES = np.arange(3, 6)
EXPANDED_CODES = np.arange(2, 5)
RECORDS, FIELDS, VALUES = 3000, 6, 8
PURPOSE = Purpose(noise=10.0, random_features=64)


def table(rows: int = 1000, embedding_rows: int = 50) -> Features:
    rng = np.random.default_rng(0)
    numeric = np.stack([rng.normal(size=rows), np.full(rows, 3.0), rng.integers(0, 2, rows)], axis=1)
    categorical = rng.integers(0, 50, (rows, 2)).astype(np.int32)
    return Features(categorical, numeric.astype(np.float32), embedding_rows, ("a", "b"), ("x", "constant", "x missing"))


def test_bins_hold_equal_shares_of_the_training_records_and_keep_their_order() -> None:
    encoded = table()
    train = np.arange(800)
    codes = CodeBook.learn(encoded, train).embed(encoded, np.arange(1000)).numpy()
    assert codes.shape == (1000, 5) and codes.dtype == np.float32
    assert (codes[:, :2] == encoded.categorical).all()
    ranks = codes[:, 2]
    middles, counts = np.unique(ranks[train], return_counts=True)
    assert (middles == (np.arange(16) + 0.5) / 16).all()
    assert (counts == 50).all()
    assert (np.diff(ranks[np.argsort(encoded.numeric[:, 0])]) >= 0).all()
    assert len(np.unique(codes[:, 3])) == 1
    assert len(np.unique(codes[:, 4])) == 2


def test_numbers_outside_of_the_training_range_fall_into_the_outer_bins() -> None:
    encoded = table()
    book = CodeBook.learn(encoded, np.arange(1000))
    extreme = torch.tensor([[-1e30, 0.0, 0.0], [1e30, 0.0, 0.0], [torch.inf, 0.0, 0.0]])
    codes = book(torch.zeros(3, 2, dtype=torch.int32), extreme)
    assert codes[:, 2].tolist() == [1 / 32, 31 / 32, 31 / 32]


def test_a_book_is_its_state() -> None:
    encoded = table()
    book = CodeBook.learn(encoded, np.arange(1000))
    again = CodeBook(book.state_dict())
    assert again.width == book.width == 5
    assert torch.equal(again.embed(encoded, np.arange(10)), book.embed(encoded, np.arange(10)))


def test_categories_that_float32_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="codes are for at most 16,777,215 categories"):
        CodeBook.learn(table(embedding_rows=LARGEST_CODE + 1), np.arange(10))


def sample(count: int = 400) -> torch.Tensor:
    """Two embeddings, a category with three frequent values, a constant category, and a rank."""
    draws = np.random.default_rng(0)
    embeddings = draws.normal(3.0, 2.0, (count, 2))
    category = draws.choice([5, 9, 11, *range(100, 130)], count, p=[0.4, 0.3, 0.24, *[0.002] * 30])
    rank = (draws.integers(0, 4, count) + 0.5) / 4
    return torch.from_numpy(np.column_stack([embeddings, category, np.full(count, 7), rank]).astype(np.float32))


def expansion_of(random_features: int = 6) -> Expansion:
    return Expansion.learn(sample(), EXPANDED_CODES, random_features, torch.Generator().manual_seed(1))


def test_frequent_values_have_cells_and_constants_have_none() -> None:
    expansion = expansion_of()
    found = zip(expansion.columns.tolist(), expansion.values.tolist(), strict=True)
    cells = sorted((column, value) for column, value in found if not np.isnan(value))
    assert cells == [(2, 5.0), (2, 9.0), (2, 11.0), (4, 0.125), (4, 0.375), (4, 0.625), (4, 0.875)]
    assert expansion.kinds == (2, 8, 6, 6)
    expanded = expansion(sample())
    assert expanded.shape == (400, 22)
    assert torch.allclose(expanded[:, :2].mean(dim=0), torch.zeros(2), atol=1e-4)
    assert set(expanded[:, 2:6].unique().tolist()) == {0.0, 1.0}  # cells of the rank
    assert (expanded[:, 7:10].sum(dim=1) == (sample()[:, 2] < 100)).all()  # cells of the category


def test_random_features_read_fields_in_one_scale() -> None:
    expansion = expansion_of(200)
    expanded = expansion(sample())
    rectified, products = expanded[:, 10:210], expanded[:, 210:]
    assert (rectified >= 0).all()
    assert products.abs().max() <= 4
    linear = expanded[:, 6:10] @ expansion.random
    assert torch.allclose(linear.var(dim=0, correction=0), torch.ones(600), atol=1e-3)
    # Another embedding changes nothing but its own feature where there are codes.
    other = sample()
    other[:, 0] += 1
    assert torch.equal(expansion(other)[:, 1:], expanded[:, 1:])


def test_without_codes_random_features_read_the_embeddings() -> None:
    expansion = Expansion.learn(sample()[:, :2], np.arange(0), 6, torch.Generator().manual_seed(1))
    assert expansion.kinds == (2, 0, 6, 6)
    assert len(expansion.random) == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38, -0.0])
def test_every_input_gives_finite_numbers(value: float) -> None:
    assert bool(torch.isfinite(expansion_of()(torch.full((3, 5), value))).all())


def test_it_can_be_learned_from_constants() -> None:
    expansion = Expansion.learn(torch.ones(50, 5), EXPANDED_CODES, 3, torch.Generator().manual_seed(1))
    assert bool(torch.isfinite(expansion(torch.ones(2, 5))).all())


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


@pytest.fixture(scope="module")
def codes() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VALUES, (RECORDS, FIELDS)).astype(np.float32)


@pytest.fixture(scope="module")
def first(codes: np.ndarray) -> FeatureMap:
    return FeatureMap.learn(codes, np.arange(FIELDS), PURPOSE)


@pytest.mark.parametrize("classes", [1, 3])
def test_fields_that_matter_weigh_more_and_values_that_act_alike_are_near(
    codes: np.ndarray, first: FeatureMap, classes: int
) -> None:
    acts = np.where(codes[:, [2]] < VALUES / 2, 1.0, -1.0) * np.arange(1, classes + 1)
    expansion = first.second(acts.astype(np.float32), codes, PURPOSE).expansion
    fields = expansion.columns
    sizes = torch.stack([expansion.random[fields == field].square().mean() for field in range(FIELDS)])
    assert sizes[2] > 20 * torch.cat([sizes[:2], sizes[3:]]).max()
    weights = expansion.random[fields == 2]
    within = (weights[0] - weights[1]).square().mean()
    assert (weights[0] - weights[-1]).square().mean() > 2 * within
    assert torch.equal(first.second(acts.astype(np.float32), codes, PURPOSE).expansion.random, expansion.random)


def test_the_first_map_is_left_as_it_is(codes: np.ndarray, first: FeatureMap) -> None:
    before = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    found = first.second(codes[:, :1], codes, PURPOSE)
    assert all(torch.equal(tensor, before[name]) for name, tensor in first.state_dict().items())
    assert not torch.equal(found.expansion.random, first.expansion.random)
    rebuilt = FeatureMap(found.state_dict())
    assert torch.equal(rebuilt(torch.from_numpy(codes)), found(torch.from_numpy(codes)))
