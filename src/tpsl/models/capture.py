"""Optimisers whose step a CUDA graph can hold: all that changes from step to step is on the device.

PyTorch's optimisers count their steps, most of them on the host. Those that have an option to count on the device get
it. Adagrad has none, but without a decay its step does not depend on the count, which is put right afterwards.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer

from tpsl.models.table import RowOptimizer


def prepare(optimizer: Optimizer) -> str | None:
    """Make an optimiser count its steps on the device; return why a graph cannot hold its step, if it cannot."""
    name, groups = type(optimizer).__name__, optimizer.param_groups
    if isinstance(optimizer, RowOptimizer):
        return None
    if isinstance(optimizer, SGD) or (isinstance(optimizer, Adagrad) and not any(g["lr_decay"] for g in groups)):
        return None
    if not all("capturable" in group for group in groups):
        return f"the optimizer {name} cannot be captured in a CUDA graph"
    for group in groups:
        group["capturable"] = True
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), Tensor):
                state["step"] = state["step"].to(parameter.device)
    # PyTorch warns of a step outside of a graph, as the first one is, and that of a batch of another size.
    optimizer._warned_capturable_if_run_uncaptured = True  # type: ignore[attr-defined]
    return None


def count(optimizer: Optimizer, steps: int) -> None:
    """Count steps that were replayed at an optimiser that counts on the host; less than 0: that were only captured."""
    if isinstance(optimizer, Adagrad) and not isinstance(optimizer, RowOptimizer):
        for state in optimizer.state.values():
            state["step"] += steps
