"""Many tensors at once on a GPU, in pieces of one size.

PyTorch's kernels for lists of tensors give each 65,536 numbers to one block of threads, so that a few blocks work on
the largest tensors of a small network while the others idle: a step of SGD on the paper's bottom half takes 16 µs of an
H200, as long as its largest matrix product. With pieces all blocks have the same to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

_SMALLEST = 2048
_MOST = 96
"""Pieces, beside one for each tensor: not many more fit into one kernel."""


def pieces(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the same memory as flat pieces; tensors that are not on a GPU as they are."""
    if not all(tensor.is_cuda for tensor in tensors):
        return list(tensors)
    size = max(_SMALLEST, -(-sum(tensor.numel() for tensor in tensors) // _MOST))
    flat = [tensor.detach().view(-1) for tensor in tensors]
    return [piece for tensor in flat for piece in tensor.split(size)]  # type: ignore[no-untyped-call]


class PlainSGD(SGD):
    """`w ← w - η·g` and nothing else, for dense gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad.contiguous() for parameter in parameters]
            if parameters:
                torch._foreach_add_(pieces(parameters), pieces(gradients), alpha=-group["lr"])
