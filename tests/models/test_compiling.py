"""Halves that PyTorch compiles; here for a CPU, by the C++ compiler of the machine."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor, nn

from tpsl.models.members import Bottoms


def bottoms() -> Bottoms:
    """One half, as small as can be: a C++ compiler takes seconds for each operation."""
    torch.manual_seed(0)
    return Bottoms([nn.Sequential(nn.Linear(2, 3), nn.Tanh())], 3, "the bottom half of bank")


def learned(half: Bottoms) -> list[Tensor]:
    """Take two steps; return their outputs, and all weights after them."""
    generator, outputs = torch.Generator().manual_seed(1), []
    for _ in range(2):
        outputs.append(half.learning()(torch.randn(40, 2, generator=generator)))
        outputs[-1].square().sum().backward()
        with torch.no_grad():
            for parameter in half.parameters():
                assert parameter.grad is not None
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
    return [*(output.detach() for output in outputs), *half.state_dict().values()]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler to compile halves with")
def test_a_compiled_half_learns_what_it_learns_as_it_is_and_the_same_each_time() -> None:
    said: list[str] = []
    plain, one, other = bottoms(), bottoms(), bottoms()
    for half in (one, other):
        half.compile_when_learning(said.append)
    expected, found, again = learned(plain), learned(one), learned(other)
    assert said == [] and one._compiled
    assert one.state_dict().keys() == plain.state_dict().keys()
    for ours, repeated, theirs in zip(found, again, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert torch.equal(ours, repeated)
    inputs = torch.ones(5, 2)
    torch.testing.assert_close(one.predicting()(inputs), plain.predicting()(inputs), rtol=1e-5, atol=1e-6)


def test_a_half_that_cannot_be_compiled_says_why_and_computes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    monkeypatch.setattr("torch._inductor.config.force_disable_caches", True)
    torch._dynamo.reset()
    said: list[str] = []
    plain, half = bottoms(), bottoms()
    half.compile_when_learning(said.append)
    for ours, theirs in zip(learned(half), learned(plain), strict=True):
        assert torch.equal(ours, theirs)
    (sentence,) = said
    assert sentence.startswith("the bottom half of bank is not compiled, but computes as it is: ")
    assert "compiler" in sentence
