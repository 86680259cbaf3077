"""The expansion of a record: cells of frequent values, ranks and random features, finite for every input."""

import numpy as np
import pytest
import torch

from tpsl.heads.feature_map import Expansion

CODES = np.arange(2, 5)


def sample(count: int = 400) -> torch.Tensor:
    """Two embeddings, a category with three frequent values, a constant category, and a rank."""
    draws = np.random.default_rng(0)
    embeddings = draws.normal(3.0, 2.0, (count, 2))
    category = draws.choice([5, 9, 11, *range(100, 130)], count, p=[0.4, 0.3, 0.24, *[0.002] * 30])
    rank = (draws.integers(0, 4, count) + 0.5) / 4
    return torch.from_numpy(np.column_stack([embeddings, category, np.full(count, 7), rank]).astype(np.float32))


def learned(random_features: int = 6) -> Expansion:
    return Expansion.learn(sample(), CODES, random_features, torch.Generator().manual_seed(1))


def test_frequent_values_have_cells_and_constants_have_none() -> None:
    expansion = learned()
    cells = sorted(zip(expansion.cell_columns.tolist(), expansion.cell_values.tolist(), strict=True))
    assert cells == [(2, 5.0), (2, 9.0), (2, 11.0), (4, 0.125), (4, 0.375), (4, 0.625), (4, 0.875)]
    assert expansion.kinds == (2, 8, 6, 6)
    expanded = expansion(sample())
    assert expanded.shape == (400, 22)
    assert torch.allclose(expanded[:, :2].mean(dim=0), torch.zeros(2), atol=1e-4)
    assert set(expanded[:, 2:6].unique().tolist()) == {0.0, 1.0}  # cells of the rank
    assert (expanded[:, 7:10].sum(dim=1) == (sample()[:, 2] < 100)).all()  # cells of the category


def test_random_features_read_fields_in_one_scale() -> None:
    expansion = learned(200)
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
    assert bool(torch.isfinite(learned()(torch.full((3, 5), value))).all())


def test_it_can_be_learned_from_constants() -> None:
    expansion = Expansion.learn(torch.ones(50, 5), CODES, 3, torch.Generator().manual_seed(1))
    assert bool(torch.isfinite(expansion(torch.ones(2, 5))).all())
