"""Optimisers of PyTorch without its compiler.

Optimisers mark some of their methods as not to be compiled, and to do so they import the compiler, which takes longer
than a small run. Nothing here compiles an optimiser.
"""

from __future__ import annotations

import inspect

import torch
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

_MARKED = (Optimizer.add_param_group, Optimizer.state_dict, Optimizer.load_state_dict)
_PLAIN_STEPS = (SGD, Adagrad, Adam, SparseAdam)
"""Classes whose steps are marked, and need nothing else of what surrounds them."""


def keep_compiler_out() -> None:
    """Have optimisers call their marked methods as they are; where PyTorch marks them otherwise, nothing changes."""
    for method in _MARKED:
        plain = getattr(method, "__wrapped__", None)
        if plain is not None and not hasattr(plain, "__dynamo_disable"):
            setattr(plain, "__dynamo_disable", plain)


def take_step(optimizer: Optimizer) -> None:
    """Do what `optimizer.step()` does."""
    if type(optimizer) not in _PLAIN_STEPS or "step" in vars(optimizer):  # a schedule counts the calls of its own step
        optimizer.step()
        return
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)
