"""A tensor from the other side is hostile until it has been checked: step, shape, type, finite numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tpsl.net.failures import BadMessage
from tpsl.transport.messages import TensorMessage

NOT_FINITE = "contain numbers that are not finite"
"""How the sentence ends, at either side, where training has diverged."""


def checked_bytes(message: TensorMessage, sender: str, step: int, part: int, shape: tuple[int, int]) -> Tensor:
    """Return the tensor of a message if it is of this step and part, and bytes of this shape."""
    return _checked(message, sender, (step, part), torch.uint8, shape)


def checked_tensor(message: TensorMessage, sender: str, step: int, part: int, shape: tuple[int, int]) -> Tensor:
    """Return the tensor of a message if it is of this step and part, float32 of this shape and finite."""
    tensor = _checked(message, sender, (step, part), torch.float32, shape)
    require_finite(tensor, step, f"{message.topic} from {sender}")
    return tensor


def require_finite(tensor: Tensor, step: int, what: str) -> None:
    """Raise a BadMessage that says what these numbers are unless all of them are finite."""
    # A NaN or an infinity anywhere makes the sum not finite: one pass. Only a suspicious sum needs the second.
    if not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
        raise BadMessage(f"step {step}: the {what} {NOT_FINITE}")


def _checked(
    message: TensorMessage, sender: str, due: tuple[int, int], dtype: torch.dtype, shape: tuple[int, int]
) -> Tensor:
    """Return the tensor of a message that is due: its step and part, its type and its shape."""
    step, part = due
    if (message.step, message.part) != due:
        raise BadMessage(
            f"{sender} sent {message.topic} of step {message.step}, part {message.part}; "
            f"expected was step {step}, part {part}"
        )
    tensor, origin = message.tensor, f"step {step}: the {message.topic} from {sender}"
    if tensor.dtype != dtype:
        found, wanted = (str(each).removeprefix("torch.") for each in (tensor.dtype, dtype))
        raise BadMessage(f"{origin} are {found}, not {wanted}")
    if tuple(tensor.shape) != shape:
        raise BadMessage(f"{origin} have shape {tuple(tensor.shape)}, not {shape}")
    return tensor
