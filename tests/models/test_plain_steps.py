"""Steps without PyTorch's compiler: the same numbers, and no import of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tpsl.models.config import OptimizerConfig, ScheduleConfig
from tpsl.models.optimizer import OPTIMIZERS, HalfOptimizer
from tpsl.models.plain_steps import plain_step

IN_A_PROCESS = """
import sys
import torch
from torch import nn
from tpsl.models.config import OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer

for name in ("adam", "sgd", "adagrad"):
    half = nn.Linear(3, 2)
    optimizer = HalfOptimizer(half, OptimizerConfig(name=name))
    half(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.load_state(*optimizer.state())
assert "torch._dynamo" not in sys.modules, "the compiler was imported"
"""


def test_an_optimiser_does_not_import_the_compiler() -> None:
    subprocess.run([sys.executable, "-c", IN_A_PROCESS], check=True)


def weights_after(steps: int, step: Any, parameter: nn.Parameter) -> Tensor:
    for number in range(steps):
        parameter.grad = torch.linspace(-1, 1, 6) * (number + 1)
        step()
    return parameter.detach().clone()


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adagrad", "rmsprop", "nadam"])
def test_a_plain_step_computes_what_a_step_does(name: str) -> None:
    found = []
    for make in (plain_step, lambda optimizer: optimizer.step):
        parameter = nn.Parameter(torch.ones(6))
        optimizer = OPTIMIZERS.get(name)([parameter], lr=0.1)
        found.append(weights_after(3, make(optimizer), parameter))
    assert torch.equal(*found) and not torch.equal(found[0], torch.ones(6))


class Counting(torch.optim.SGD):
    """An optimiser of a user, which does something around its step."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


def test_the_step_of_a_users_optimiser_is_called_as_it_is() -> None:
    parameter = nn.Parameter(torch.ones(6))
    optimizer = Counting([parameter], lr=0.1)
    weights_after(3, plain_step(optimizer), parameter)
    assert optimizer.steps == 3


@pytest.mark.filterwarnings("error")
def test_a_schedule_sees_each_step() -> None:
    half = nn.Linear(2, 1)
    schedule = ScheduleConfig(name="StepLR", arguments={"step_size": 1, "gamma": 0.5})
    optimizer = HalfOptimizer(half, OptimizerConfig(name="sgd", learning_rate=1.0, schedule=schedule))
    before = half.bias.detach().clone()
    for _ in range(3):
        half.bias.grad, half.weight.grad = torch.ones(1), torch.zeros(1, 2)
        optimizer.step()
    assert torch.allclose(before - half.bias.detach(), torch.tensor([1.75]))
