"""How and where the halves of this process compute: precision, compiled or not, the device, how many threads.

With `bf16` the factors of matrix products are rounded to 8 significant bits (bfloat16) and multiplied by the units that
GPUs and newer CPUs have for that; a product is added up in float32. Between two layers numbers are bfloat16, too. All
that lasts, leaves a half or decides is float32: weights, tables, what optimisers keep, the cut, logits and their
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn

from tpsl.models.model_config import Precision
from tpsl.workers import ALONE, Workers

_MOST_VARIANTS = 1 << 16
"""Of one compiled function: each size of a batch is one, in each run of this process."""


@dataclass(frozen=True)
class Computing:
    """A setting of the process, as PyTorch's own settings are."""

    precision: Precision = "float32"
    compiled: bool = False
    """Whether halves of a user's own are compiled by PyTorch."""


_current = [Computing()]


def computing() -> Computing:
    """Return how halves compute."""
    return _current[0]


def compute(how: Computing) -> None:
    """Have all halves of this process compute so, from now on."""
    torch.set_float32_matmul_precision("high" if how.precision == "tf32" else "highest")
    _current[0] = how


def products_on(device: torch.device) -> AbstractContextManager[object]:
    """Within this context layers on a device compute products in the precision of the process."""
    return torch.autocast(device.type, torch.bfloat16) if computing().precision == "bf16" else nullcontext()


def product_type(device: torch.device) -> torch.dtype:
    """Return the type in which layers on a device read their inputs now: float32 outside of `products_on`."""
    return torch.bfloat16 if torch.is_autocast_enabled(device.type) else torch.float32


@dataclass(frozen=True)
class Placement:
    """On which device this process has its halves, and which workers have the same ones."""

    device: torch.device | None = None
    """The CPU if None."""
    workers: Workers = ALONE


HERE = Placement()
"""On the CPU, in one process."""


def compiled(half: nn.Module) -> Callable[..., Any]:
    """Return what computes what a half does; PyTorch compiles it when it is first called with a batch of a size.

    Many small operations become few larger ones. Each size of a batch is compiled by itself, and no variant is chosen
    by timing it, so what is computed is a function of the half and of the batch, and a resumed run has the weights of
    an unbroken one. They are not those of a run that compiles nothing: sums have another order.
    """
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


_changing = Lock()
_usual: dict[int, int] = {}  # by thread that is inside: how many it computes with outside


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread here: small products gain nothing from more, and mostly wait for each other.

    A decomposition at width 128 takes 3 ms in one thread and took up to 400 in two, on two busy cores.
    Several threads may be in here at once. One that begins meanwhile finds one thread as the number of the process, and
    has that of the others when it has been in here itself.
    """
    thread = get_ident()
    if thread in _usual:
        yield
        return
    with _changing:
        _usual[thread] = max(torch.get_num_threads(), *_usual.values(), 1)
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _changing:
            torch.set_num_threads(_usual.pop(thread))
