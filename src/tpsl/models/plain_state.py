"""The state of a PyTorch object as named tensors and JSON: what a checkpoint may hold, and never a pickle.

A state is dictionaries, lists and tuples of tensors, numbers, texts and None. Tensors go into a dictionary of their own
under their path. What is left is JSON, in which tuples and dictionaries are marked: JSON alone would make lists of the
one and texts of the other's keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def packed(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return a state as JSON; its tensors are added to `tensors`, copied, under names that begin with `path`."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().clone()
        return {"tensor": path}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [packed(part, f"{path}/{at}", tensors) for at, part in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": packed(list(value), path, tensors)}
    if isinstance(value, dict) and all(isinstance(key, int | str) for key in value):
        return {"dict": [[key, packed(part, f"{path}/{key}", tensors)] for key, part in value.items()]}
    raise ValueError(f"the state of the {path} is a {type(value).__name__}, which no checkpoint can hold")


def unpacked(content: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the state that `packed` made this of."""
    if isinstance(content, list):
        return [unpacked(part, tensors) for part in content]
    if not isinstance(content, dict):
        return content
    ((kind, value),) = content.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "tuple":
        return tuple(unpacked(value, tensors))
    return {key: unpacked(part, tensors) for key, part in value}
