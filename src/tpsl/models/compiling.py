"""Halves of a user's own, compiled by PyTorch: many small operations become few larger ones, forwards and backwards.

Each size of a batch is compiled by itself, and no variant is chosen by timing it. So what is computed is a function of
the half and of the batch, and a resumed run has the weights of an unbroken one. They are not those of a run that
compiles nothing: sums have another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

_MOST_VARIANTS = 1 << 16
"""Of one function: each size of a batch is one, in each run of this process."""


def compiled(half: nn.Module) -> Callable[..., Any]:
    """Return what computes what a half does; it is compiled when first called with a batch of a size."""
    from torch._dynamo import config as tracing
    from torch._inductor import config as generating

    # Beyond its limit PyTorch would silently compute what is new as it is, and a repeated run something else.
    tracing.recompile_limit = tracing.accumulated_recompile_limit = _MOST_VARIANTS
    # Variants that were timed against each other would differ from run to run.
    options: dict[str, Any] = {"deterministic": True} if hasattr(generating, "deterministic") else {}
    return torch.compile(half, dynamic=False, options=options)


def obstacle_to_compiling(half: nn.Module, batch: Sequence[Tensor]) -> str | None:
    """Return why a half cannot be compiled, forwards or backwards; None if it can. It is tried with a copy."""
    try:
        outputs = compiled(copied := deepcopy(half))(*batch)
        parameters = [parameter for parameter in copied.parameters() if parameter.requires_grad]
        torch.autograd.grad(outputs.sum(), parameters, allow_unused=True)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[0] if lines else 'no reason is given'}"
    return None
