"""Optimisers step without PyTorch's compiler, as they do with it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from tpsl.models.uncompiled import take_step

IMPORTS_NO_COMPILER = """
import sys
import torch
from tpsl.models.config import OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer

for name in ("sgd", "adam", "adagrad"):
    half = torch.nn.Linear(3, 2)
    optimizer = HalfOptimizer(half, OptimizerConfig(name=name))
    half(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.load_state(*optimizer.state())
print("torch._dynamo" in sys.modules)
"""


def test_a_step_and_a_checkpoint_import_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS_NO_COMPILER], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.AdamW])
def test_it_is_the_step_of_the_optimizer(make: type[Optimizer]) -> None:
    weights = []
    for step in (take_step, lambda optimizer: optimizer.step()):
        torch.manual_seed(0)
        half = nn.Linear(3, 2)
        optimizer = make(half.parameters(), lr=0.1)  # type: ignore[call-arg]
        for _ in range(3):
            half(torch.ones(1, 3)).square().sum().backward()
            step(optimizer)
        weights.append(half.weight.detach().clone())
        assert torch.is_grad_enabled()
    assert torch.equal(*weights)


def test_a_schedule_still_counts_steps(recwarn: pytest.WarningsRecorder) -> None:
    half = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(half.parameters(), lr=0.1)
    schedule = lr_scheduler.StepLR(optimizer, 1)
    half(torch.ones(1, 3)).sum().backward()
    take_step(optimizer)
    schedule.step()
    assert not recwarn.list


def test_a_class_of_its_own_takes_its_own_step() -> None:
    class Counting(torch.optim.SGD):
        steps = 0

        def step(self, closure: object = None) -> None:
            self.steps += 1

    optimizer = Counting(nn.Linear(3, 2).parameters(), lr=0.1)
    take_step(optimizer)
    assert optimizer.steps == 1
