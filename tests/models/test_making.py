"""Halves that users bring: made the same each time, and refused where a run could not be repeated or resumed."""

import itertools
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tpsl.models.halves import make_members
from tpsl.registry import ExtensionError

WHAT = "the bottom half of left, networks:half,"


def half() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def weights(module: nn.Module) -> list[torch.Tensor]:
    return list(module.state_dict().values())


def test_the_seed_fixes_the_weights_and_pytorchs_generator_is_as_before() -> None:
    before = torch.get_rng_state()
    one, other = make_members(half, [1, 2], WHAT)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again, third = make_members(half, [1, 3], WHAT)
    assert all(map(torch.equal, weights(one), weights(again)))
    assert not torch.equal(weights(one)[0], weights(other)[0])
    assert not torch.equal(weights(other)[0], weights(third)[0])


KEPT = half()


class OutOfState(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 4)
        self.register_buffer("mask", torch.ones(4), persistent=False)


class ExtraState(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"count": 1}


def with_numpy() -> nn.Module:
    layer = nn.Linear(3, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(4, 3))))
    return layer


@pytest.mark.parametrize(
    ("factory", "seeds", "reason"),
    [
        (lambda: torch.zeros(3), [1], "is of the type Tensor, not a torch.nn.Module"),
        (nn.ReLU, [1], "has no parameters to train"),
        (lambda: nn.Linear(3, 4).requires_grad_(False), [1], "has no parameters to train"),
        (lambda: nn.Sequential(nn.ReLU(), OutOfState()), [1], r"keeps 1.mask outside its state \(persistent=False\)"),
        (lambda: ExtraState(3, 4), [1], "keeps _extra_state in its state, which is no tensor"),
        (lambda: nn.LazyLinear(4), [1], "has lazy layers"),
        (with_numpy, [1], "has other weights each time it is made"),
        (lambda: KEPT, [1], "is the same module each time it is made"),
        (lambda: deepcopy(KEPT), [1, 2], "has the same weights in each member"),
    ],
)
def test_what_could_not_be_repeated_or_kept_is_refused(
    factory: Callable[[], Any], seeds: list[int], reason: str
) -> None:
    with pytest.raises(ExtensionError, match=f"^{WHAT} {reason}"):
        make_members(factory, seeds, WHAT)


def test_a_factory_that_counts_its_calls_is_noticed() -> None:
    calls = itertools.count()
    with pytest.raises(ExtensionError, match="has other weights each time"):
        make_members(lambda: nn.Linear(3, 4 + next(calls)), [1], WHAT)
