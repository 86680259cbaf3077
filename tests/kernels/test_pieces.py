"""Plain SGD is PyTorch's."""

from __future__ import annotations

import torch

from tpsl.kernels.pieces import PlainSGD, pieces

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
