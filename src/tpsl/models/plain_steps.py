"""Optimisers without PyTorch's compiler: the first one of a process imports it, which takes longer than a small run.

Two things in `torch.optim.Optimizer` do: the first call of some methods, to mark them as not to be compiled, and the
function around each `step`, to mark where a compiled program ends. Nothing is compiled here. Where PyTorch is made
otherwise than this module expects, it imports what it imports, and all results are the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch.optim import Optimizer

_MARK = "__dynamo_disable"
"""Where `torch._compile._disable_dynamo` keeps what it calls instead of a method."""

for _method in list(vars(Optimizer).values()):
    if inspect.isfunction(_method) and inspect.isfunction(_plain := getattr(_method, "__wrapped__", None)):
        setattr(_plain, _MARK, _plain)


def plain_step(optimizer: Optimizer) -> Callable[[], object]:
    """Return what takes a step of an optimiser: if it is no user's own, the function that computes and nothing else.

    A schedule, if there is one, has put its own function around the step by then, and expects it to be called.
    """
    computes = inspect.unwrap(type(optimizer).step)
    is_a_users_own = type(optimizer).__module__.partition(".")[0] not in ("torch", "tpsl")
    if is_a_users_own or "step" in vars(optimizer) or optimizer.defaults.get("differentiable"):
        return optimizer.step
    return torch.no_grad()(lambda: computes(optimizer))
