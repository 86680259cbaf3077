"""The workers of a party: processes that train together, each on its share of every batch, with the same weights.

They are started by `torchrun`, or by whatever else starts a process group of `torch.distributed`, and this is the only
file that speaks to it. A process that was started alone has none of it: its party is `ALONE`. At the end stands in how
many threads a process computes.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor

_PATIENCE = timedelta(days=30)
"""How long a worker waits for another: it may be waiting for a peer. One that has died is noticed at once."""
_BETWEEN_LOOKS = 0.005  # seconds, at the store in which workers meet


class WorkerLost(ValueError):
    """Another worker of this party has ended: what has started the workers starts all of them again."""


@dataclass(frozen=True)
class Workers:
    """This process among the workers of its party.

    What workers exchange they do together: all of them call the same methods in the same order. What is returned, or
    left in place, is equal at all of them to the last bit, and for a given number of workers it is the same in every
    run. A worker alone gets back what it gave.
    """

    rank: int
    """Which worker this is, from 0."""
    count: int
    local_rank: int = 0
    """Which worker this is among those on the same machine, from 0."""

    @classmethod
    def of_this_process(cls, device: str = "cpu") -> Workers:
        """Return the workers of the process group, or those that `torchrun` describes, or `ALONE`.

        `device` is the kind of device that they compute on: a GPU becomes the current one.
        """
        import torch.distributed as group

        if not group.is_initialized():
            if int(os.environ.get("WORLD_SIZE", "1")) == 1:
                return ALONE
            _join_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        workers = cls(group.get_rank(), group.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
        if device == "cuda" and workers.are_several:
            torch.cuda.set_device(workers.device(device))  # of this thread; kernels are started there
        return workers

    def device(self, kind: str) -> torch.device:
        """Return the device of this worker; each of several on a machine has a GPU of its own, as far as they go."""
        if self.are_several and kind == "cuda":
            return torch.device(kind, self.local_rank % torch.cuda.device_count())
        return torch.device(kind)

    @property
    def is_first(self) -> bool:
        """Whether this is worker 0, which writes the party's files."""
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        """Whether the party has more workers than this one."""
        return self.count > 1

    def own_rows(self, rows: int) -> slice:
        """Return which of n rows are this worker's: with 3 workers, worker 1 has rows 3 to 5 of 10."""
        return slice(self.rank * rows // self.count, (self.rank + 1) * rows // self.count)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Put into each tensor the sum of it over all workers; they have the same shapes everywhere."""
        if not self.are_several:
            return
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for alike in kinds.values():
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
            with _process_group() as group:
                group.all_reduce(flat)
            for tensor, summed in zip(alike, torch.split(flat, [t.numel() for t in alike]), strict=True):
                tensor.detach().copy_(summed.view_as(tensor))

    def all_gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of all workers, in order of their ranks; each may have another number of them."""
        if not self.are_several:
            return rows
        own, lengths = _as_bytes(rows), [torch.empty(1, dtype=torch.int64) for _ in range(self.count)]
        with _process_group() as group:
            group.all_gather(lengths, torch.tensor([len(rows)]))
            padded = own.new_zeros((int(max(lengths)), own.shape[1]))
            padded[: len(rows)] = own
            received = [torch.empty_like(padded) for _ in lengths]
            group.all_gather(received, padded)
        everything = torch.cat([part[: int(length)] for part, length in zip(received, lengths, strict=True)])
        return _from_bytes(everything, rows)

    def broadcast(self, value: Any) -> Any:
        """Return what the first worker says, as JSON holds it; what the others say does not matter."""
        if not self.are_several:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        length = torch.tensor([len(text)])
        with _process_group() as group:
            group.broadcast(length, 0)
            content = torch.frombuffer(bytearray(text or int(length)), dtype=torch.uint8)
            group.broadcast(content, 0)
        return json.loads(content.numpy().tobytes())

    def broadcast_tensor(self, tensor: Tensor | None) -> Tensor:
        """Return the first worker's tensor, on the same kind of device; what the others give does not matter."""
        if tensor is not None and not self.are_several:
            return tensor
        described = None if tensor is None else [list(tensor.shape), str(tensor.dtype)[6:], tensor.device.type]
        shape, dtype, device = self.broadcast(described)  # of a torch.int16 without "torch."
        if tensor is None or not self.is_first:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        content = _as_bytes(tensor[None])
        with _process_group() as group:
            group.broadcast(content, 0)
        return _from_bytes(content, tensor[None])[0]

    def barrier(self) -> None:
        """Return when every worker has come to this point."""
        self.all_reduce([torch.zeros(1)])


ALONE = Workers(0, 1)
"""A party of one process: nothing is exchanged, and `torch.distributed` is not used."""


@dataclass(frozen=True)
class Placement:
    """On which device this process has its halves, and which workers have the same ones."""

    device: torch.device | None = None
    """The CPU if None."""
    workers: Workers = ALONE


HERE = Placement()
"""On the CPU, in one process."""


def _join_process_group(backend: str) -> None:
    """Begin the process group of the workers that were started together.

    The store at which they meet is that of `torchrun` and outlives them: what was written there before a restart is
    not for those that were started after it. So each group writes under the number of its start.
    """
    import torch.distributed as group
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://", timeout=_PATIENCE))
    start = _number_of_start(PrefixStore("tpsl starts", store), rank, count)
    own = PrefixStore(f"tpsl start {start}", store)
    group.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=_PATIENCE)
    atexit.register(group.destroy_process_group)  # else its threads may abort a process that ends well


def _number_of_start(store: Any, rank: int, count: int) -> int:
    """Return how often the workers were started, the same at all that were started together.

    The first worker counts. Another one joins a start that it has not joined before, in an earlier life, and goes with
    it when the first worker has seen all others there.
    """
    if rank == 0:
        start: int = store.add("number", 1)
        while not all(store.add(f"{start}: {other} is there", 0) for other in range(1, count)):
            time.sleep(_BETWEEN_LOOKS)
        store.set(f"{start}: all are there", "yes")
        return start
    start, is_mine = 0, False
    while not (is_mine and store.check([f"{start}: all are there"])):
        time.sleep(_BETWEEN_LOOKS)
        newest = store.add("number", 0)
        if newest > start:
            start, is_mine = newest, store.add(f"{newest}: {rank} is there", 1) == 1
    return start


@contextmanager
def _process_group() -> Iterator[Any]:
    """Give what talks to the other workers, whose loss is said in a sentence."""
    import torch.distributed as group

    try:
        yield group
    except RuntimeError as error:
        raise WorkerLost("another worker of this party has ended, or cannot be reached") from error


def _as_bytes(rows: Tensor) -> Tensor:
    """Return the bytes of each row: `torch.distributed` moves few types of numbers."""
    return rows.detach().reshape(len(rows), prod(rows.shape[1:])).contiguous().view(torch.uint8)


def _from_bytes(content: Tensor, like: Tensor) -> Tensor:
    """Return rows of which these are the bytes, of the type and shape of other rows."""
    return content.view(like.dtype).reshape(len(content), *like.shape[1:])


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
