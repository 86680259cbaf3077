"""How the halves of this process compute: a setting of the process, as PyTorch's own settings are.

With `bf16` the factors of matrix products are rounded to 8 significant bits (bfloat16) and multiplied by the units that
GPUs and newer CPUs have for that; a product is added up in float32. Between two layers numbers are bfloat16, too. All
that lasts, leaves a half or decides is float32: weights, tables, what optimisers keep, the cut, logits and their
gradients.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from tpsl.models.model_config import Precision


@dataclass(frozen=True)
class Computing:
    """The setting."""

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
