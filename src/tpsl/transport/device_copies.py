"""Tensors between a device and the wire. Copies of a GPU go on beside its work, through pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from tpsl.transport.rounding import as_received

CPU = torch.device("cpu")


def leaving(sent: Tensor) -> Callable[[], Tensor]:
    """Begin to copy rows to the CPU; the result waits for the copy, in any thread, and returns it.

    What the tensor holds when this is called is what leaves: a GPU does its work in order.
    """
    if not sent.is_cuda:
        return lambda: sent
    copied = torch.empty(sent.shape, dtype=sent.dtype, pin_memory=True).copy_(sent, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def wait() -> Tensor:
        done.synchronize()
        return copied

    return wait


def arrived(sent: Tensor, device: torch.device) -> Tensor:
    """Return what the receiver computes with, on the device; waits until it is there. Bytes stay on the CPU.

    On a GPU in a stream of its own: what the caller's thread waits for is the copy, not the work before it.
    """
    if device.type != "cuda" or sent.dtype == torch.uint8:
        return as_received(sent)
    pinned = torch.empty(sent.shape, dtype=sent.dtype, pin_memory=True).copy_(sent)
    stream = _copy_stream(device)
    with torch.cuda.stream(stream):
        received = as_received(pinned.to(device, non_blocking=True))
        received.record_stream(torch.cuda.default_stream(device))
    stream.synchronize()
    return received


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
