"""The rows of an embedding table that a batch touches: looked up, and updated in place.

A batch names rows by `categorical[n, F]`, n records of F fields. What is looked up, and the gradient of it, lie in a
matrix `[n, width]` whose first `F·d` columns are the table's. A network has its other inputs in the columns behind
them, which are left alone; so nothing is copied to stand beside them.

The loops are chosen by the device: Numba's on a CPU, Triton's on a CUDA device. Where there are none, a table has to be
updated by the optimisers of `torch.optim` on sparse gradients. A module of loops has

- `gather(weight, categorical, out)`: puts rows into the first columns of `out`, float32 or bfloat16, all contiguous;
- `begin(categorical)`: begins what the update of rows that were looked up needs before their gradient comes, and
  returns what waits for it;
- `RowUpdate(kind, weight, settings, state)`: what an optimiser (`torch.optim.SGD`, `Adagrad`, or Adam in its lazy form,
  `SparseAdam`) does to the rows that a batch touches. `weight` [R, d] is the table, float32 and contiguous; `settings`
  are the optimiser's parameter group, read in each step: `lr`; `lr_decay`, `eps`, `betas` if it has them; `state` is
  what it keeps of the table: nothing; `sum` and `step`; or `exp_avg`, `exp_avg_sq` and `step`;
- `RowUpdate.apply(categorical, gradient, begun)`: updates these rows by the gradient of what was looked up, float32 or
  bfloat16, which may be overwritten, and counts the step in the state. `begun` is what `begin` has begun, or None.

Guarantee: the result is that of the optimiser of `torch.optim` on the sparse gradient, up to the order of sums. That
order is a function of the batch, so a step that is repeated has the same bits. A number that is not a row of the table
is an IndexError on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["sgd", "adagrad", "adam"]
_LOOPS = {"cpu": ("numba", "tpsl.kernels.rows_numba"), "cuda": ("triton", "tpsl.kernels.rows_triton")}
"""For each kind of device, the package that its loops need and the module that has them."""


def has_loops(device: str) -> bool:
    """Whether there are loops for a kind of device (`torch.device.type`), and the package that they need."""
    return device in _LOOPS and _is_installed(_LOOPS[device][0])


@cache
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


@cache
def loops(device: str) -> ModuleType:
    """Return the loops for a kind of device; they are loaded when first asked for, which takes a second."""
    return import_module(_LOOPS[device][1])


@cache
def stream_beside(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """Return a stream of a CUDA device, one for each priority, for what need not stand in the way of other work."""
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


def compiled(loop: Callable[..., Any]) -> Any:
    """Return a loop that is compiled when first called, and kept for later processes if some folder is writable."""
    import numba

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(loop, cache=True, **options)
    except RuntimeError:  # no such folder
        return numba.njit(loop, **options)


def gather(weight: Tensor, categorical: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the rows of a table side by side, `[n, F·d]`, or `out` with them in its first columns."""
    if out is None:
        out = weight.new_empty(categorical.shape[0], categorical.shape[1] * weight.shape[1])
    if categorical.numel():
        loops(weight.device.type).gather(weight, categorical.contiguous(), out)
    return out
