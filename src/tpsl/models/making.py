"""How halves come into being: a factory is called once for each member, with PyTorch's generators seeded.

The weights are then a function of the job's seed, of the half and of the member, so every run of a job starts from the
same ones. A factory that draws from PyTorch's own generators needs nothing more for that. One that draws from others
(NumPy's, Python's) or reads files must see to it itself; that its weights are the same each time is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tpsl.registry import ExtensionError

_seeding = RLock()


def make_members(factory: Callable[[], Any], seeds: Sequence[int], what: str) -> list[nn.Module]:
    """Return a half for each seed, made by a factory of a user's; `what` names the half in errors.

    Guarantee: the same seeds give the same weights, and PyTorch's generators are as they were before. A half that could
    not be repeated, updated or kept in a checkpoint is refused.
    """
    members = [seeded(factory, seed) for seed in seeds]
    for member in members:
        _check(member, what)
    again = seeded(factory, seeds[0])
    if again is members[0]:
        raise ExtensionError(f"{what} is the same module each time it is made: a run would begin with trained weights")
    if not same_weights(members[0], again):
        raise ExtensionError(f"{what} has other weights each time it is made: draw them from PyTorch's generator alone")
    if any(same_weights(one, other) for one, other in pairwise(members)):
        raise ExtensionError(f"{what} has the same weights in each member: members need a factory that draws them")
    return members


def seeded(factory: Callable[[], Any], seed: int) -> Any:
    """Return what the factory makes while PyTorch's generators, which all threads share, start from this seed."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with _seeding, torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        return factory()


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules have the same parameters and buffers, to the last bit."""
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def _check(half: object, what: str) -> None:
    if not isinstance(half, nn.Module):
        raise ExtensionError(f"{what} is of the type {type(half).__name__}, not a torch.nn.Module")
    if any(map(is_lazy, half.parameters())):
        raise ExtensionError(f"{what} has lazy layers, whose weights do not exist yet: give their sizes")
    if not any(parameter.requires_grad for parameter in half.parameters()):
        raise ExtensionError(f"{what} has no parameters to train")
    for name, value in half.state_dict().items():
        if not isinstance(value, Tensor):
            raise ExtensionError(f"{what} keeps {name} in its state, which is no tensor: no checkpoint can hold it")
    for name, part in half.named_modules():
        for buffer in sorted(part._non_persistent_buffers_set):
            where = f"{name}.{buffer}" if name else buffer
            raise ExtensionError(f"{what} keeps {where} outside its state (persistent=False): no checkpoint has it")
