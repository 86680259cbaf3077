"""How numbers cross the border: rounded to the type of the wire, float32 again at the other end, and checked there.

    float32, uint8      as they are
    bfloat16, float16   rounded to nearest; float16 saturates
    int8                q_j = round(x_j/s), with s = max_j |x_j|/127 for each row; at the other end x̂_j = q_j·s

Rounding is a deterministic function of what is sent: post-processing, which costs no ε, and a resumed run rounds as an
unbroken one. It happens where the tensor is, so that a GPU copies only what crosses. A tensor from the other side is
hostile until it has been checked: shape, type, finite numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.net.messages import Message, WireType

NOT_FINITE_NUMBERS = "contain numbers that are not finite"
"""How the sentence ends, at either side, where training has diverged."""

_ON_WIRE: dict[WireType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "uint8": torch.uint8,
}
_FLOAT16_MAX = torch.finfo(torch.float16).max
_INT8_MAX = 127
_SCALE_BYTES = 4  # of a float32 after the numbers of a row
_SMALLEST_SCALE = torch.finfo(torch.float32).smallest_normal
_LARGEST_SCALE = torch.finfo(torch.float32).max / _INT8_MAX * (1 - 2**-23)  # times 127 it is finite


def in_memory(dtype: WireType) -> torch.dtype:
    """Return what the tensors of this wire are made of at both ends."""
    return torch.uint8 if dtype == "uint8" else torch.float32


def wire_bytes(shape: Sequence[int], dtype: WireType) -> int:
    """Return how many bytes rows of this shape take on the wire."""
    return math.prod(shape) * _ON_WIRE[dtype].itemsize + (shape[0] * _SCALE_BYTES if dtype == "int8" else 0)


def as_sent(tensor: Tensor, dtype: WireType) -> Tensor:
    """Return rows as they cross, in memory of their own on the device where they are.

    As int8 each row is its numbers followed by the bytes of its scale. Rows whose largest number is below 1.5e-36
    become zeros. The scale of a row with a number that is not finite is NaN: an error that the receiver has to see.
    """
    if tensor.dtype != (torch.uint8 if dtype == "uint8" else torch.float32) or tensor.dim() != 2:
        kind, wanted = (str(each).removeprefix("torch.") for each in (tensor.dtype, in_memory(dtype)))
        raise ValueError(f"a tensor crosses as rows of {wanted}, not as {kind} of shape {tuple(tensor.shape)}")
    tensor = tensor.detach()
    if dtype == "int8":
        return _with_scales(tensor)
    if dtype == "float16":
        limited = tensor.clamp(-_FLOAT16_MAX, _FLOAT16_MAX)
        # An infinity stays one: it is an error that the receiver has to see.
        if not math.isfinite(float(tensor.sum())):
            limited = torch.where(tensor.isinf(), tensor, limited)
        tensor = limited
    if tensor.dtype == _ON_WIRE[dtype]:
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.to(_ON_WIRE[dtype]).contiguous()


def as_received(sent: Tensor) -> Tensor:
    """Return what the receiver computes with: the numbers as float32, or bytes as they are."""
    if sent.dtype == torch.int8:
        return sent[:, :-_SCALE_BYTES] * row_scales(sent)
    return sent if sent.dtype == torch.uint8 else sent.float()


def rounded(tensor: Tensor, dtype: WireType) -> Tensor:
    """Return rows as they arrive at the other end, in memory of their own."""
    sent = as_sent(tensor, dtype)
    return sent if sent.dtype == tensor.dtype else as_received(sent)


def from_wire(payload: Tensor, shape: tuple[int, int], dtype: WireType) -> Tensor:
    """Return received bytes as rows that `as_sent` could have made, but for the values in them."""
    rows, width = shape
    if not len(payload):  # what has no bytes cannot be seen as another type
        payload = torch.empty(0, dtype=torch.uint8)
    return payload.view(_ON_WIRE[dtype]).view(rows, width + (_SCALE_BYTES if dtype == "int8" else 0))


def row_scales(sent: Tensor) -> Tensor:
    """Return the scale s of each row of int8, as a column."""
    return sent[:, -_SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)


def are_scales(scales: Tensor) -> bool:
    """Return whether honest rows can have these scales: 0 or more and finite, or NaN."""
    bits = scales.view(torch.int32)
    return bool((((bits >= 0) & scales.isfinite()) | scales.isnan()).all())


def _with_scales(tensor: Tensor) -> Tensor:
    rows, width = tensor.shape
    sent = torch.zeros(rows, width + _SCALE_BYTES, dtype=torch.int8, device=tensor.device)
    if not tensor.numel():
        return sent
    scales = tensor.abs().amax(dim=1, keepdim=True) / _INT8_MAX
    scales.masked_fill_(scales < _SMALLEST_SCALE, 0).masked_fill_(scales.isinf(), math.nan).clamp_(max=_LARGEST_SCALE)
    # Where the scale is 0 or NaN the quotient is no number: these rows are zeros, times the scale.
    sent[:, :width] = torch.div(tensor, scales).nan_to_num_(0, 0, 0).round_()
    sent[:, width:] = scales.view(torch.int8)
    return sent


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
        due = f"{widths[0]} to {widths[-1]}" if len(widths) > 1 else f"{widths[0]}"
        raise BadMessage(f"{what} have shape {found}, not ({rows}, {due})")
    return message.tensor
