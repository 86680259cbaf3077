"""How and where the halves of this process compute: in which precision, on which device, with how many threads.

With `bf16` the factors of matrix products are rounded to 8 significant bits (bfloat16) and multiplied by the units that
GPUs and newer CPUs have for that; a product is added up in float32. Between two layers numbers are bfloat16, too. All
that lasts, leaves a half or decides is float32: weights, tables, what optimisers keep, the cut, logits and their
gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock, get_ident

import torch

from tpsl.models.model_config import Precision
from tpsl.workers import ALONE, Workers

_precision: list[Precision] = ["float32"]
"""A setting of the process, as PyTorch's own settings are."""


def precision() -> Precision:
    """Return in which precision halves compute products."""
    return _precision[0]


def compute_in(chosen: Precision) -> None:
    """Have all halves of this process compute products so, from now on."""
    torch.set_float32_matmul_precision("high" if chosen == "tf32" else "highest")
    _precision[0] = chosen


def products_on(device: torch.device) -> AbstractContextManager[object]:
    """Within this context layers on a device compute products in the precision of the process."""
    return torch.autocast(device.type, torch.bfloat16) if precision() == "bf16" else nullcontext()


@dataclass(frozen=True)
class Placement:
    """On which device this process has its halves, and which workers have the same ones."""

    device: torch.device | None = None
    """The CPU if None."""
    workers: Workers = ALONE


HERE = Placement()
"""On the CPU, in one process."""


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
