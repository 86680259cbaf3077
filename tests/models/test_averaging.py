import math

import pytest
import torch
from safetensors.torch import load, save

from tpsl.models.halves import Bottom
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer, WeightAverage

DECAY = 0.9


def half(updates: str = "dense") -> Bottom:
    config = ModelConfig(bottom=(16,), embedding_updates=updates)  # type: ignore[arg-type]
    return Bottom(50, 4, 2, config, torch.Generator().manual_seed(0))


def optimizer(module: Bottom, averaging: float = DECAY) -> HalfOptimizer:
    return HalfOptimizer(module, OptimizerConfig(name="adam", learning_rate=0.05), averaging)


def step(module: Bottom, update: HalfOptimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    categorical = torch.randint(0, 50, (20, 4), generator=generator, dtype=torch.int32)
    module(categorical, torch.randn(20, 2, generator=generator)).square().mean().backward()
    update.step()


def weights(module: Bottom) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


def averages(module: Bottom, update: HalfOptimizer) -> dict[str, torch.Tensor]:
    with update.averaged():
        return weights(module)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_average_is_that_of_a_loop_in_float64() -> None:
    module = half()
    update = optimizer(module)
    assert equal(averages(module, update), weights(module))
    expected: dict[str, torch.Tensor] = {}
    for number in range(1, 101):
        step(module, update, number)
        now = weights(module)
        # From step 80 on, (1+t) / (10+t) is above the decay of 0.9.
        decay = (1 + number) / (10 + number) if number < 80 else DECAY
        expected = {
            name: a + (1 - decay) * (now[name].double() - a)
            for name, a in (expected or {name: weight.double() for name, weight in now.items()}).items()
        }
        assert equal(averages(module, update), now) == (number == 1)
        for name, average in averages(module, update).items():
            torch.testing.assert_close(average.double(), expected[name], rtol=0, atol=1e-6)


def test_a_short_run_forgets_where_it_started() -> None:
    weight = torch.nn.Parameter(torch.full((1,), 1000.0))
    average = WeightAverage({"weight": weight}, 0.995)
    average.update()
    with torch.no_grad():
        weight.zero_()
    for _ in range(50):
        average.update()
    # What is left of the first weights is the product of the decays: 0.995 alone would leave three quarters of them.
    assert float(average.state()["weight"]) == pytest.approx(1000 * math.prod((1 + t) / (10 + t) for t in range(2, 52)))
    assert float(average.state()["weight"]) < 1e-2


def test_averaging_does_not_change_the_updates() -> None:
    with_average, without = half(), half()
    one, other = optimizer(with_average), optimizer(without, 0.0)
    for number in range(30):
        step(with_average, one, number)
        averages(with_average, one)
        step(without, other, number)
        assert equal(weights(with_average), weights(without))
    assert equal(averages(without, other), weights(without))


def test_weights_come_back_as_the_same_memory_also_after_an_error() -> None:
    module = half()
    update = optimizer(module)
    for number in range(25):
        step(module, update, number)
    before, memory = weights(module), [p.data_ptr() for p in module.parameters()]
    average = averages(module, update)
    with pytest.raises(KeyError), update.averaged(), update.averaged():
        assert equal(weights(module), average)
        raise KeyError
    assert equal(weights(module), before)
    assert [p.data_ptr() for p in module.parameters()] == memory
    step(module, update, 25)


def test_what_is_saved_within_the_context_stays_the_average() -> None:
    module = half()
    update = optimizer(module)
    for number in range(25):
        step(module, update, number)
    with update.averaged():
        content = save(module.state_dict())
    assert equal(load(content), averages(module, update))


def test_a_step_with_the_average_in_place_is_an_error() -> None:
    module = half()
    update = optimizer(module)
    for number in range(25):
        step(module, update, number)
    average = averages(module, update)
    with pytest.raises(RuntimeError, match="a step while the averaged weights are in place"), update.averaged():
        step(module, update, 25)
    assert equal(averages(module, update), average)


@pytest.mark.parametrize("updates", ["dense", "lazy"])
@pytest.mark.parametrize("saved_after", [0, 1, 2, 15, 30])
def test_a_restored_average_goes_on_to_the_same_bits(saved_after: int, updates: str) -> None:
    unbroken = half(updates)
    update = optimizer(unbroken)
    for number in range(saved_after):
        step(unbroken, update, number)
    tensors, settings = update.state()
    content, at_save = save(tensors), weights(unbroken)
    for number in range(saved_after, 40):
        step(unbroken, update, number)

    resumed = half(updates)
    resumed.load_state_dict(at_save)
    resumed_update = optimizer(resumed)
    resumed_update.load_state(load(content), settings)
    for number in range(saved_after, 40):
        step(resumed, resumed_update, number)
    assert equal(weights(resumed), weights(unbroken))
    assert equal(averages(resumed, resumed_update), averages(unbroken, update))
    assert not equal(averages(resumed, resumed_update), weights(resumed))
    assert equal(resumed_update.state()[0], update.state()[0])


def test_weights_loaded_into_a_fresh_half_are_those_it_predicts_with() -> None:
    trained, fresh = half(), half()
    update, fresh_update = optimizer(trained), optimizer(fresh)
    for number in range(25):
        step(trained, update, number)
    fresh.load_state_dict(averages(trained, update))
    assert equal(averages(fresh, fresh_update), averages(trained, update))


def test_tables_with_lazy_updates_are_left_out() -> None:
    module = half("lazy")
    update = optimizer(module)
    for number in range(25):
        step(module, update, number)
    assert module.embedding is not None
    table, now = module.embedding.weight.data_ptr(), weights(module)
    with update.averaged():
        assert module.embedding.weight.data_ptr() == table
        changed = {name for name, weight in weights(module).items() if not torch.equal(weight, now[name])}
    assert changed == {"layers.0.weight", "layers.0.bias"}
    kept = {name for name in update.state()[0] if name.startswith("average/")}
    assert kept == {"average/steps", "average/layers.0.weight", "average/layers.0.bias"}


@pytest.mark.parametrize("averaging", [-0.1, 1.0, 1.5, math.nan])
def test_a_decay_that_is_none_is_refused(averaging: float) -> None:
    with pytest.raises(ValueError, match="decay of a weight average lies between 0 and 1, got"):
        optimizer(half(), averaging)


def test_a_state_with_other_averages_is_refused() -> None:
    module, plain = half(), half()
    update, plain_update = optimizer(module), optimizer(plain, 0.0)
    for number in range(20):
        step(module, update, number)
        step(plain, plain_update, number)
    with pytest.raises(ValueError, match="that of an optimiser with averaging"):
        plain_update.load_state(*update.state())
    with pytest.raises(ValueError, match="that of an optimiser without averaging"):
        update.load_state(*plain_update.state())
    before = averages(module, update)
    for change in ({"average/layers.0.bias": torch.zeros(1)}, {"average/steps": torch.tensor(0)}):
        tensors, settings = update.state()
        with pytest.raises(ValueError, match="those of other weights"):
            update.load_state(tensors | change, settings)
    assert equal(averages(module, update), before)


def test_averages_in_a_state_do_not_change_with_the_optimiser_that_gave_or_took_it() -> None:
    module, other = half(), half()
    update, other_update = optimizer(module), optimizer(other)
    for number in range(25):
        step(module, update, number)
    tensors, settings = update.state()
    kept = {name: tensor.clone() for name, tensor in tensors.items() if name.startswith("average/")}
    other_update.load_state(tensors, settings)
    for number in range(25, 30):
        step(module, update, number)
        step(other, other_update, number)
    assert equal({name: tensors[name] for name in kept}, kept)
