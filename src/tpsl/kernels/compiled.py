"""Loops in Python that Numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(loop: Callable[..., Any]) -> Any:
    """Return a loop that is compiled when first called, and kept for later processes if some folder is writable."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(loop, cache=True, **options)
    except RuntimeError:  # no such folder
        return numba.njit(loop, **options)
