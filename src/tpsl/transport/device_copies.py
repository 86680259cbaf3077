"""Tensors between a device and the wire. Copies of a GPU go on beside its work, through pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
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


class Payload:
    """Memory for received bytes, from which a device copies them directly."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.numbers = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._array, self._filled = self.numbers.numpy(), 0

    @property
    def due(self) -> int:
        """How many bytes are still to come."""
        return len(self._array) - self._filled

    def append(self, received: memoryview) -> None:
        """Put these bytes behind those that are there."""
        end = self._filled + len(received)
        self._array[self._filled : end] = np.frombuffer(received, np.uint8)
        self._filled = end


def arrived(sent: Tensor, device: torch.device) -> Tensor:
    """Return what the receiver computes with, on the device; waits until it is there. Bytes stay on the CPU.

    On a GPU in a stream of its own: what the caller's thread waits for is the copy, not the work before it.
    """
    if device.type != "cuda" or sent.dtype == torch.uint8:
        return sent if sent.dtype in (torch.float32, torch.uint8) else as_received(sent)
    stream = _copy_stream(device)
    with torch.cuda.stream(stream):
        received = as_received(sent.to(device, non_blocking=True))
        received.record_stream(torch.cuda.default_stream(device))
    stream.synchronize()
    return received


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
