"""Layers on a CUDA device say what PyTorch's own say, forwards and backwards."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("records, widths", [(100, (7, 5, 130)), (64, (20, 128, 64)), (1, (3, 4)), (8192, (40, 128))])
def test_outputs_and_gradients_are_those_of_pytorch(records: int, widths: tuple[int, ...], padding: int) -> None:
    from tpsl.kernels.layers_triton import FusedLayers

    torch.manual_seed(0)
    shapes = [shape for below, above in pairwise(widths) for shape in ((above, below), (above,))]
    parameters = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
    inputs = torch.randn(records, widths[0], device="cuda", requires_grad=True)
    theirs = inputs
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        theirs = torch.relu(functional.linear(theirs, weight, bias))
    ours, leaves = FusedLayers.apply(functional.pad(inputs, (0, padding)), *parameters), [inputs, *parameters]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    given = torch.randn_like(theirs)
    found, expected = (torch.autograd.grad(each, leaves, given, retain_graph=True) for each in (ours, theirs))
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


def test_under_autocast_outputs_and_gradients_are_float32_and_near_those_of_float32() -> None:
    from tpsl.kernels.layers_triton import FusedLayers

    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(128, 40), (128,), (64, 128), (64,)]
    parameters = [torch.randn(shape, device="cuda", generator=generator) / shape[-1] ** 0.5 for shape in shapes]
    inputs = torch.randn(1000, 40, device="cuda", generator=generator)
    found = []
    for enabled in (False, True, True):
        leaves = [tensor.detach().requires_grad_() for tensor in (inputs, *parameters)]
        with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            output = FusedLayers.apply(*leaves)
        output.backward(torch.ones_like(output))
        found.append([output.detach(), *(leaf.grad for leaf in leaves)])
    for exact, rounded, repeated in zip(*found, strict=True):
        assert rounded.dtype == torch.float32
        assert torch.equal(rounded, repeated)
        assert (rounded - exact).norm() <= 0.06 * exact.norm()  # some outputs near zero change sides
    assert not torch.equal(found[0][0], found[1][0])
