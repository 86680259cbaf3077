"""The gradients of a party's workers, each computed from its own share of a batch, as one: their sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tpsl.workers import Workers


@torch.no_grad()
def sum_dense(parameters: Sequence[nn.Parameter], workers: Workers) -> None:
    """Have in each `.grad` the sum over all workers: the same bits everywhere; None where nobody has a gradient."""
    if not parameters:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    found = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
    workers.add_up([found, *gradients])
    for parameter, gradient, is_found in zip(parameters, gradients, found.tolist(), strict=True):
        parameter.grad = gradient if is_found else None


@torch.no_grad()
def sum_sparse(parameters: Sequence[nn.Parameter], workers: Workers) -> None:
    """Have in each `.grad` the sparse gradients of all workers, in order of their numbers, likewise."""
    for parameter in parameters:
        parameter.grad = _gathered(parameter, workers)


def _gathered(parameter: nn.Parameter, workers: Workers) -> Tensor | None:
    rows, values = parameter.new_empty(0, dtype=torch.int64), parameter.detach()[:0]
    if parameter.grad is not None:
        own = parameter.grad.coalesce()
        rows, values = own.indices()[0], own.values()
    rows, values = workers.gathered(rows), workers.gathered(values)
    if not len(rows):
        return None
    return torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)
