"""How many threads torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident

import torch

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
