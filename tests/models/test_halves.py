import math

import pytest
import torch

from tpsl.models.halves import Bottom, Top
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bottom(embedding_updates: str = "dense", seed: int = 0, rows: int = 500) -> Bottom:
    config = ModelConfig(embedding_updates=embedding_updates)  # type: ignore[arg-type]
    return Bottom(rows, 6, 3, config, generator(seed))


def batch(n: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    categorical = torch.randint(0, 500, (n, 6), generator=generator(1), dtype=torch.int32)
    return categorical, torch.randn(n, 3, generator=generator(2))


def test_the_papers_widths() -> None:
    half = bottom()
    assert half(*batch()).shape == (64, 128)
    assert [tuple(p.shape) for p in half.parameters()] == [(500, 16), (128, 6 * 16 + 3), (128,), (128, 128), (128,)]
    top = Top(128, 2, ModelConfig(), generator())
    assert [tuple(p.shape) for p in top.parameters()] == [(128, 128), (128,), (128, 128), (128,), (1, 128), (1,)]
    assert top(torch.zeros(5, 128)).shape == (5,)
    assert Top(128, 7, ModelConfig(), generator())(torch.zeros(5, 128)).shape == (5, 7)


def test_the_cut_is_after_a_relu() -> None:
    assert (bottom()(*batch()) >= 0).all()


def test_only_numbers_and_only_categories() -> None:
    config = ModelConfig(bottom=(8,), top=())
    numbers, categories = Bottom(0, 0, 3, config, generator()), Bottom(10, 2, 0, config, generator())
    empty = torch.zeros(4, 0)
    assert numbers(empty.int(), torch.zeros(4, 3)).shape == (4, 8)
    assert categories(torch.zeros(4, 2, dtype=torch.int32), empty).shape == (4, 8)
    assert Top(8, 2, config, generator())(torch.zeros(4, 8)).shape == (4,)


def test_gaussian_initialisation() -> None:
    half = Bottom(20_000, 30, 0, ModelConfig(), generator(5))
    first = half.layers[0].weight.detach()
    for weights, expected in ((first, math.sqrt(2 / 480)), (half.embedding.weight.detach(), 0.25)):
        count = weights.numel()
        assert abs(float(weights.mean())) < 5 * expected / math.sqrt(count)
        assert abs(float(weights.std()) / expected - 1) < 5 / math.sqrt(2 * count)
        within_one_sigma = float((weights.abs() < expected).float().mean())
        assert within_one_sigma == pytest.approx(0.6827, abs=5 * 0.4655 / math.sqrt(count))
    assert all(not p.detach().any() for name, p in half.named_parameters() if name.endswith("bias"))


def test_the_seed_fixes_the_weights() -> None:
    one, same, other = bottom(seed=1), bottom(seed=1), bottom(seed=2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


def test_auto_is_lazy_for_large_tables_only() -> None:
    assert not Bottom(1000, 1, 0, ModelConfig(), generator()).embedding.sparse
    assert Bottom(200_000, 1, 0, ModelConfig(embedding_dim=1), generator()).embedding.sparse


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_lazy_updates_give_the_weights_of_dense_ones(name: str) -> None:
    halves = [bottom("dense"), bottom("lazy")]
    for half in halves:
        optimizer = HalfOptimizer(half, OptimizerConfig(name=name, learning_rate=0.1))  # type: ignore[arg-type]
        for _ in range(5):
            half(*batch()).square().mean().backward()
            optimizer.step()
    for dense, lazy in zip(halves[0].parameters(), halves[1].parameters(), strict=True):
        torch.testing.assert_close(dense, lazy, rtol=0, atol=1e-6)
