"""A tensor from the other side is hostile until it has been checked: shape, type, finite numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.net.messages import Message

NOT_FINITE_NUMBERS = "contain numbers that are not finite"
"""How the sentence ends, at either side, where training has diverged."""


def require_finite(tensor: Tensor, what: str) -> None:
    """Raise a BadMessage that says what these numbers are unless all of them are finite."""
    # A NaN or an infinity anywhere makes the sum not finite: one pass. Only a suspicious sum needs the second.
    if not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
        raise BadMessage(f"{what} {NOT_FINITE_NUMBERS}", NOT_FINITE)


def checked_tensor(message: Message, what: str, rows: int, width: int | range) -> Tensor:
    """Return the tensor of a message if it has this shape; `what` names it and its sender in a sentence."""
    if message.tensor is None:
        raise BadMessage(f"{what} are missing")
    found, widths = tuple(message.tensor.shape), width if isinstance(width, range) else range(width, width + 1)
    if found[0] != rows or found[1] not in widths:
        wanted = f"{widths[0]} to {widths[-1]}" if len(widths) > 1 else f"{widths[0]}"
        raise BadMessage(f"{what} have shape {found}, not ({rows}, {wanted})")
    return message.tensor
