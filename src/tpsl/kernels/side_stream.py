"""Further streams of a CUDA device, for work that nothing on the first one waits for until it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


class SideStream:
    """Work beside the current stream. On a device without streams it is done at once, in turn.

    Within `open()` a `join()` is put off: whatever needs the results has to run beside, too.
    """

    def __init__(self, device: torch.device) -> None:
        # Its kernels are small and come between large ones: they go first.
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device, priority=-1) if on_gpu else None  # type: ignore[no-untyped-call]
        self._in_use: list[Tensor] = []
        self._is_open = False

    @contextmanager
    def running(self, *inputs: Tensor) -> Iterator[None]:
        """Run what is launched here beside, after all that was launched before; the inputs are kept until `join`."""
        if self._stream is None:
            yield
            return
        # Memory that is let go could be given out on the current stream while this one still reads it.
        self._in_use += inputs
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Have the current stream wait for all that runs beside."""
        if self._stream is not None and not self._is_open:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._in_use.clear()

    def mark(self) -> Callable[[], None]:
        """Return what makes the current stream wait for all that was launched beside until now, and no more."""
        if self._stream is None:
            return lambda: None
        event = self._stream.record_event()
        return lambda: torch.cuda.current_stream().wait_event(event)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Join at the end of this context, and not before."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            self.join()


@cache
def side_stream(device: torch.device) -> SideStream:
    """Return the side stream of a device."""
    return SideStream(device)


@cache
def early_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of a CUDA device for what needs neither weights nor gradients, and can be done before them.

    Work on it has to wait for the current stream first, so that memory which that one has let go is free.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
