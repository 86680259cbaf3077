"""A tensor from the other side is hostile until it has been checked: shape, type, finite numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class BadMessage(ValueError):
    """A message that no honest peer sends; the sentence says who sent what in which step."""


def checked_tensor(tensor: Tensor, shape: tuple[int, int], *, sender: str, what: str, step: int) -> Tensor:
    """Return the tensor if it is float32 of this shape and finite, else raise BadMessage."""
    origin = f"step {step}: the {what} from {sender}"
    if tensor.dtype != torch.float32:
        raise BadMessage(f"{origin} are {str(tensor.dtype).removeprefix('torch.')}, not float32")
    if tuple(tensor.shape) != shape:
        raise BadMessage(f"{origin} have shape {tuple(tensor.shape)}, not {shape}")
    # A NaN or an infinity anywhere makes the sum not finite: one pass. Only a suspicious sum needs the second.
    if not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
        raise BadMessage(f"{origin} contain numbers that are not finite")
    return tensor
