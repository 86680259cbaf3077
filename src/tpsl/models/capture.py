"""Optimisers whose step a CUDA graph can hold: all that changes from step to step is on the device.

PyTorch's optimisers count their steps, most of them on the host. Those that have an option to count on the device get
it. Adagrad has none, but without a decay its step does not depend on the count, which is put right afterwards.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer

from tpsl.models.table import RowOptimizer


def settle(optimizer: Optimizer) -> None:
    """Have an optimiser count its steps where its parameters are, if it can; its state may come from another device."""
    for group in optimizer.param_groups:
        if "capturable" not in group:
            continue
        group["capturable"] = all(parameter.is_cuda for parameter in group["params"])
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), Tensor):
                state["step"] = state["step"].to(parameter.device)
    # PyTorch warns of a step outside of a graph, as the first one is, and that of a batch of another size.
    optimizer._warned_capturable_if_run_uncaptured = True


def can_be_captured(optimizer: Optimizer) -> bool:
    """Whether a CUDA graph can hold a step of this optimiser, which has dense gradients or is a `RowOptimizer`."""
    groups = optimizer.param_groups
    if isinstance(optimizer, Adagrad) and not isinstance(optimizer, RowOptimizer):
        return not any(group["lr_decay"] for group in groups)
    return isinstance(optimizer, RowOptimizer | SGD) or all(group.get("capturable") for group in groups)


def count_on_host(optimizer: Optimizer, steps: int) -> None:
    """Count steps that were replayed at an optimiser that counts on the host; less than 0: that were only captured."""
    if isinstance(optimizer, Adagrad) and not isinstance(optimizer, RowOptimizer):
        for state in optimizer.state.values():
            state["step"] += steps
