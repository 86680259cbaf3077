"""Halves whose factory has PyTorch compile them; here for a CPU, by the C++ compiler of the machine."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor, nn

from tpsl.models.halves import Bottoms, make_members


def half() -> nn.Module:
    """As small as can be: a C++ compiler takes seconds for each operation."""
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh())


def compiled() -> nn.Module:
    made = half()
    made.compile(dynamic=False)
    return made


def learned(bottoms: Bottoms) -> list[Tensor]:
    """Take two steps; return their outputs, and all weights after them."""
    generator, outputs = torch.Generator().manual_seed(1), []
    for _ in range(2):
        outputs.append(bottoms.learning()(torch.randn(40, 2, generator=generator)))
        outputs[-1].square().sum().backward()
        with torch.no_grad():
            for parameter in bottoms.parameters():
                assert parameter.grad is not None
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
    return [*(output.detach() for output in outputs), *bottoms.state_dict().values()]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler to compile halves with")
def test_a_compiled_half_learns_what_it_learns_as_it_is_and_the_same_each_time() -> None:
    plain, one, other = (Bottoms(make_members(make, [1], "the half"), 3) for make in (half, compiled, compiled))
    expected, found, again = learned(plain), learned(one), learned(other)
    assert one.state_dict().keys() == plain.state_dict().keys()
    for ours, repeated, theirs in zip(found, again, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert torch.equal(ours, repeated)
    inputs = torch.ones(5, 2)
    torch.testing.assert_close(one.predicting()(inputs), plain.predicting()(inputs), rtol=1e-5, atol=1e-6)
