"""Processes that do a part of the work of another one, or take its place."""

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from typing import TypeVar

_LOWEST_PRIORITY = 19
Result = TypeVar("Result")


def end_with_parent() -> None:
    """Have this process end when the one that started it does, however that ends; else it would wait for ever."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def prepared(prepare: Callable[[], Result], take_over: bool) -> Result:
    """Return what `prepare` returns; with `take_over`, from a thread that gives way to everything else on the machine.

    To import PyTorch and to read a model takes seconds of a processor that another process needs to serve. What is
    there afterwards stays: the garbage collector, which stops everything else, need not look at it between requests.
    """
    priority = _LOWEST_PRIORITY if take_over else os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1, initializer=os.setpriority, initargs=(os.PRIO_PROCESS, 0, priority)) as thread:
        result = thread.submit(prepare).result()
        thread.submit(gc.collect).result()
    gc.freeze()
    return result
