from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load, save

from tpsl.models.halves import Bottom
from tpsl.models.model_config import ModelConfig, OptimizerConfig, ScheduleConfig
from tpsl.models.optimizer import OPTIMIZERS, SCHEDULES, HalfOptimizer, PlainSGD, pieces


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


OPTIMIZERS_AND_SCHEDULES = [
    ("adam", {"amsgrad": True}, ("OneCycleLR", {"max_lr": 0.1, "total_steps": 9})),
    ("AdamW", {"betas": [0.8, 0.99]}, ("CosineAnnealingWarmRestarts", {"T_0": 2})),
    ("RMSprop", {"momentum": 0.9, "centered": True}, ("MultiStepLR", {"milestones": [2, 4], "gamma": 0.1})),
    ("NAdam", {}, ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "cycle_momentum": False})),
    ("Rprop", {}, None),
    ("sgd", {"momentum": 0.9, "nesterov": True}, ("StepLR", {"step_size": 2})),
    ("signs", {"shrink": 0.5}, ("halving", {"every": 2})),
]


class Signs(torch.optim.Optimizer):
    """A user's optimiser: steps of one size, with a state that is a number."""

    def __init__(self, parameters: Any, lr: float, shrink: float) -> None:
        super().__init__(parameters, {"lr": lr, "shrink": shrink})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["scale"] = state.get("scale", 1.0) * group["shrink"]
                parameter -= group["lr"] * state["scale"] * parameter.grad.sign()


def halving(optimizer: torch.optim.Optimizer, every: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // every))


@pytest.fixture(autouse=True, scope="module")
def parts_of_a_user() -> None:
    OPTIMIZERS.register("signs", Signs)
    SCHEDULES.register("halving", halving)


@pytest.mark.parametrize(("name", "arguments", "schedule"), OPTIMIZERS_AND_SCHEDULES, ids=lambda value: str(value)[:14])
def test_any_optimiser_and_schedule_goes_on_to_the_same_bits(
    name: str, arguments: dict[str, Any], schedule: tuple[str, dict[str, Any]] | None
) -> None:
    decay = {} if name in ("Rprop", "signs") else {"weight_decay": 0.01}
    of_schedule = {} if schedule is None else {"schedule": {"name": schedule[0], "arguments": schedule[1]}}
    config = OptimizerConfig.model_validate(
        {"name": name, "learning_rate": 0.05, "arguments": arguments, **decay, **of_schedule}
    )
    unbroken, resumed = half("dense"), half("dense")
    optimizer = HalfOptimizer(unbroken, config)
    steps(unbroken, optimizer, 3)
    weights, (tensors, settings) = (
        {key: value.clone() for key, value in unbroken.state_dict().items()},
        optimizer.state(),
    )
    contents = save(tensors)
    steps(unbroken, optimizer, 4, first=3)

    resumed.load_state_dict(weights)
    resumed_optimizer = HalfOptimizer(resumed, config)
    resumed_optimizer.load_state(load(contents), settings)
    steps(resumed, resumed_optimizer, 4, first=3)
    for a, b in zip(unbroken.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert optimizer.state()[1] == resumed_optimizer.state()[1]
    # Not by chance: a fresh optimiser goes elsewhere.
    resumed.load_state_dict(weights)
    steps(resumed, HalfOptimizer(resumed, config), 4, first=3)
    assert not all(map(torch.equal, unbroken.parameters(), resumed.parameters()))


def test_a_schedule_changes_the_learning_rate_in_every_step() -> None:
    config = OptimizerConfig(name="sgd", schedule=ScheduleConfig(name="halving", arguments={"every": 1}))
    optimizer = HalfOptimizer(half("lazy"), config)
    rates = []
    for _ in range(3):
        optimizer.step()
        rates.append([part.param_groups[0]["lr"] for part in optimizer._parts])
    assert rates == [[5e-4, 5e-4], [2.5e-4, 2.5e-4], [1.25e-4, 1.25e-4]]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"name": "adamx"}, "name\n.*unknown optimizer 'adamx'; known are .*adagrad, .*signs"),
        ({"name": "lbfgs"}, "a step of the optimizer lbfgs fails .*closure"),
        ({"name": "SparseAdam"}, "a step of the optimizer sparseadam fails .*dense"),
        ({"name": "sgd", "arguments": {"momentun": 1}}, "optimizer sgd does not take 'momentun'; it takes .*momentum"),
        ({"name": "sgd", "arguments": {"momentum": -1}}, "optimizer sgd fails .*Invalid momentum value: -1"),
        ({"arguments": {"lr": 1.0}}, "the optimizer adam gets its lr from learning_rate"),
        ({"name": "rprop", "weight_decay": 0.1}, "the optimizer rprop does not take 'weight_decay'"),
        ({"schedule": {"name": "never"}}, "name\n.*unknown schedule 'never'; known are .*onecyclelr, .*halving"),
        ({"schedule": {"name": "OneCycleLR"}}, "the schedule onecyclelr fails .*max_lr"),
        (
            {"schedule": {"name": "halving", "arguments": {"every": 2, "x": 1}}},
            "halving does not take 'x'; it takes every",
        ),
        ({"schedule": {"name": "ReduceLROnPlateau"}}, "the schedule reducelronplateau fails .*metrics"),
    ],
)
def test_what_cannot_work_is_refused_when_the_job_is_read(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        OptimizerConfig.model_validate(config)


@pytest.mark.parametrize("name", ["AdamW", "RMSprop"])
def test_lazy_tables_need_an_optimiser_for_sparse_gradients(name: str) -> None:
    config = OptimizerConfig(name=name)
    HalfOptimizer(half("dense"), config)
    with pytest.raises(ValueError, match=f"{name.lower()} with the sparse gradients of lazy embedding tables fails"):
        HalfOptimizer(half("lazy"), config)


def test_lazy_adam_does_not_take_what_only_dense_adam_has() -> None:
    config = OptimizerConfig(arguments={"amsgrad": True})
    with pytest.raises(ValueError, match="the optimizer adam does not take 'amsgrad'; it takes lr, betas"):
        HalfOptimizer(half("lazy"), config)


def test_a_schedule_that_has_ended_says_so() -> None:
    config = OptimizerConfig(schedule=ScheduleConfig(name="OneCycleLR", arguments={"max_lr": 0.1, "total_steps": 3}))
    optimizer = HalfOptimizer(half("dense"), config)
    for _ in range(3):
        optimizer.step()
    with pytest.raises(ValueError, match=r"the schedule onecyclelr fails .*Tried to step 4 times"):
        optimizer.step()


def test_frozen_layers_stay_as_they_are_and_embedding_bags_are_tables() -> None:
    module = torch.nn.Sequential(torch.nn.EmbeddingBag(9, 4, sparse=True), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    module[1].requires_grad_(False)
    before = [p.detach().clone() for p in module.parameters()]
    optimizer = HalfOptimizer(module, OptimizerConfig(name="sgd", weight_decay=0.1))
    assert len(optimizer.parameters) == 3
    module(torch.tensor([[1, 2], [3, 3]])).sum().backward()
    optimizer.step()
    changed = [not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)]
    assert changed == [True, False, False, True, True]
    assert torch.equal(before[0][4:], module[0].weight[4:])


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


def test_adam_in_one_pass_is_adam() -> None:
    ours, plain = half("dense"), half("dense")
    steps(ours, HalfOptimizer(ours, OptimizerConfig(learning_rate=0.01)), 100)
    adam = torch.optim.Adam(plain.parameters(), lr=0.01, fused=False)
    for step in range(100):
        adam.zero_grad()
        generator = torch.Generator().manual_seed(step)
        categorical = torch.randint(0, 50, (20, 4), generator=generator, dtype=torch.int32)
        plain(categorical, torch.randn(20, 2, generator=generator)).square().mean().backward()
        adam.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_gradients_are_divided_by_the_records_lazy_ones_too(name: str) -> None:
    results = []
    for updates, records in (("dense", 7), ("lazy", 7), ("dense", 1)):
        module = half(updates)
        optimizer = HalfOptimizer(module, OptimizerConfig(name=name, learning_rate=0.5))
        for _ in range(3):
            module(torch.arange(8, dtype=torch.int32).reshape(2, 4), torch.ones(2, 2)).sum().backward()
            optimizer.step(records)
        results.append(module.embedding.weight.detach())
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-6)
    assert name == "adagrad" or not torch.allclose(results[2], results[0], atol=1e-3)


def test_the_state_of_a_lazy_table_has_the_names_that_checkpoints_have_always_had() -> None:
    names = {}
    for name in ("sgd", "adagrad", "adam"):
        module = half("lazy")
        optimizer = HalfOptimizer(module, OptimizerConfig(name=name))
        steps(module, optimizer, 1)
        names[name] = {key for key in optimizer.state()[0] if key.startswith("1/")}
    assert names == {
        "sgd": set(),
        "adagrad": {"1/state/0/step", "1/state/0/sum"},
        "adam": {"1/state/0/exp_avg", "1/state/0/exp_avg_sq"},
    }


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


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_a_step_has_the_bits_of_torch_optim() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape, device=DEVICE)) for shape in ((128, 624), (128,), (3, 5))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    gradients = [torch.randn_like(p) for p in ours[:2]]
    for parameters, make in ((ours, PlainSGD), (theirs, torch.optim.SGD)):
        for parameter, gradient in zip(parameters, gradients, strict=False):
            parameter.grad = gradient
        make(parameters, lr=0.1).step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_pieces_are_the_same_memory() -> None:
    tensors = [torch.zeros(100, 100, device=DEVICE), torch.zeros(3, device=DEVICE)]
    for piece in pieces(tensors):
        piece.add_(1)
    assert all(bool((tensor == 1).all()) for tensor in tensors)
