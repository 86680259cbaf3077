import pytest
import torch

from tpsl.models import Bottom, HalfOptimizer, ModelConfig, OptimizerConfig


def half(updates: str) -> Bottom:
    config = ModelConfig(bottom=(16,), embedding_updates=updates)  # type: ignore[arg-type]
    return Bottom(50, 4, 2, config, torch.Generator().manual_seed(0))


def steps(module: Bottom, optimizer: HalfOptimizer, count: int, first: int = 0) -> None:
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(step)
        categorical = torch.randint(0, 50, (20, 4), generator=generator, dtype=torch.int32)
        module(categorical, torch.randn(20, 2, generator=generator)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("updates", ["dense", "lazy"])
@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad"])
def test_a_restored_state_goes_on_to_the_same_bits(name: str, updates: str) -> None:
    config = OptimizerConfig(name=name, learning_rate=0.05, weight_decay=0.01)  # type: ignore[arg-type]
    unbroken = half(updates)
    unbroken_optimizer = HalfOptimizer(unbroken, config)
    steps(unbroken, unbroken_optimizer, 3)
    weights = {key: value.clone() for key, value in unbroken.state_dict().items()}
    tensors, settings = unbroken_optimizer.state()
    steps(unbroken, unbroken_optimizer, 3, first=3)

    resumed = half(updates)
    resumed.load_state_dict(weights)
    resumed_optimizer = HalfOptimizer(resumed, config)
    resumed_optimizer.load_state(tensors, settings)
    steps(resumed, resumed_optimizer, 3, first=3)
    for a, b in zip(unbroken.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_sgd_is_the_papers_update() -> None:
    module = half("dense")
    before = [p.detach().clone() for p in module.parameters()]
    optimizer = HalfOptimizer(module, OptimizerConfig(name="sgd", learning_rate=0.5))
    module(torch.zeros(4, 4, dtype=torch.int32), torch.ones(4, 2)).sum().backward()
    gradients = [p.grad.clone() for p in module.parameters()]
    optimizer.step()
    for parameter, old, gradient in zip(module.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.5 * gradient, rtol=0, atol=1e-7)
        assert parameter.grad is None


def test_weight_decay_spares_the_embeddings() -> None:
    module = half("dense")
    optimizer = HalfOptimizer(module, OptimizerConfig(name="sgd", learning_rate=0.5, weight_decay=0.1))
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(module.embedding.weight, before["embedding.weight"])
    torch.testing.assert_close(module.layers[0].weight.detach(), before["layers.0.weight"] * 0.95)


def test_a_state_of_another_shape_is_refused() -> None:
    numbers_only = Bottom(0, 0, 2, ModelConfig(bottom=(4,)), torch.Generator().manual_seed(0))
    tensors, settings = HalfOptimizer(numbers_only, OptimizerConfig()).state()
    with pytest.raises(ValueError, match="the state has 1 parts, this optimiser has 2"):
        HalfOptimizer(half("dense"), OptimizerConfig()).load_state(tensors, settings)
