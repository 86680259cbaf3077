"""A tensor from the other side is hostile until it has been checked: step, shape, type, finite numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tpsl.transport.messages import TensorMessage


class BadMessage(ValueError):
    """A message that no honest peer sends; the sentence says who sent what in which step."""


def checked_tensor(message: TensorMessage, sender: str, step: int, part: int, shape: tuple[int, int]) -> Tensor:
    """Return the tensor of a message if it is of this step and part, float32 of this shape and finite."""
    if (message.step, message.part) != (step, part):
        raise BadMessage(
            f"{sender} sent {message.topic} of step {message.step}, part {message.part}; "
            f"expected was step {step}, part {part}"
        )
    tensor, origin = message.tensor, f"step {step}: the {message.topic} from {sender}"
    if tensor.dtype != torch.float32:
        raise BadMessage(f"{origin} are {str(tensor.dtype).removeprefix('torch.')}, not float32")
    if tuple(tensor.shape) != shape:
        raise BadMessage(f"{origin} have shape {tuple(tensor.shape)}, not {shape}")
    # A NaN or an infinity anywhere makes the sum not finite: one pass. Only a suspicious sum needs the second.
    if not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
        raise BadMessage(f"{origin} contain numbers that are not finite")
    return tensor
