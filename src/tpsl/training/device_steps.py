"""Steps of all parties on one CUDA device, without a word to the host between the first and the last of a stretch.

Features, noisy labels and the order of an epoch lie on the device. Several steps (gathering, both halves, perturbation,
updates) are captured once as a CUDA graph, which is then only replayed. Captured or not, a step runs the same kernels
on the same memory: the parties' own weights and states. So a resumed run has the weights of an unbroken one to the bit.

A half that a party brings itself may do what no graph can hold: look at numbers that are on the device. It is tried
before a graph is captured, and if so one notice says it and steps are launched one by one.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tpsl.data.order import BatchPlan, Rows, position_mask
from tpsl.kernels.dense import side_stream
from tpsl.net.checks import NOT_FINITE_NUMBERS
from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.net.rounding import rounded
from tpsl.training.role import FeatureRole, LabelRole

STEPS_AT_ONCE = 16
"""Steps in the largest graph; from one graph to the next the device idles for some microseconds."""
_AHEAD = 4
"""Graphs that may wait for the device; with more of them, progress would be shown long before there is any."""
_TOP_BIT = -(1 << 63)


class DeviceSteps:
    """Takes steps of the label party and of all feature parties of a run."""

    def __init__(self, label: LabelRole, features: Sequence[FeatureRole]) -> None:
        self._label, self._features, self._schedule = label, features, label.schedule
        self._stream = torch.cuda.Stream(label.party.device)  # type: ignore[no-untyped-call]
        self._orders = EpochOrders(label, features)
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Records]] = {}
        """By the number of steps and that of records."""
        self._sizes: set[int] = set()
        """Batches of these sizes have been trained on: what they need is compiled and loaded."""
        self._prepared, self._untimed = 0.0, 0
        brings_halves = any(role.own.bottom or role.own.top for role in (label, *features))
        self._can_capture: bool | None = None if brings_halves else True
        """None: it has to be tried."""

    def close(self) -> None:
        """Free the graphs, and let nothing be sorted any more."""
        self._orders.close()
        self._stream.synchronize()
        self._graphs.clear()

    def take(self, stretch: range) -> float:
        """Take the steps; return how long they took.

        That is without what is done once: the first epoch is put into its order, graphs are captured, and kernels are
        compiled and loaded in the first step with batches of a size, whose records the speed does not count either.
        """
        begun, self._prepared, self._untimed = time.perf_counter(), 0.0, 0
        under_way: deque[torch.cuda.Event] = deque()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            with nullcontext() if self._sizes else self._preparing():
                records = self._orders.of_epoch(self._schedule.epoch_of(stretch.start))
            for steps in self._portions(stretch):
                self._launch(steps, records)
                under_way.append(self._stream.record_event())
                if len(under_way) > _AHEAD:
                    under_way.popleft().synchronize()
                for role in (self._label, *self._features):
                    role.count(steps.stop, self._schedule.records(steps.stop) - self._schedule.records(steps.start))
            self._stream.synchronize()
        for role in (self._label, *self._features):
            role.speed.records -= self._untimed
        if not all(bool(p.isfinite().all()) for p in self._label.party.optimizer.parameters):
            raise BadMessage(
                f"after step {stretch.stop:,}: the weights of the label party {NOT_FINITE_NUMBERS}", NOT_FINITE
            )
        return time.perf_counter() - begun - self._prepared

    def _portions(self, stretch: range) -> Iterator[range]:
        """Yield the steps as they are launched: many full batches at once, or a single step."""
        plan, start = self._schedule.plan, stretch.start
        epoch_end = start - start % plan.batches_per_epoch + plan.batches_per_epoch
        full = min(stretch.stop, epoch_end - (1 if plan.rows % plan.batch_size else 0))
        while start < stretch.stop:
            at_once = self._can_capture and plan.batch_size in self._sizes and start + STEPS_AT_ONCE <= full
            count = STEPS_AT_ONCE if at_once else 1
            yield range(start, start + count)
            start += count

    def _launch(self, steps: range, epoch: Records) -> None:
        """Have the device take some steps; the first one with batches of a size without a graph."""
        size, first = self._schedule.plan.batch_size, steps.start % self._schedule.plan.batches_per_epoch
        given = epoch[first * size : (first + len(steps)) * size]
        if len(steps) == 1 and len(given) not in self._sizes:
            with self._preparing():
                self._compute([given])
                self._stream.synchronize()
            self._sizes.add(len(given))
            self._untimed += len(given)
            return
        if self._can_capture is None:
            self._try_out(given)
            return
        if not self._can_capture:
            self._compute([given])
            return
        if (kind := (len(steps), len(given))) not in self._graphs:
            with self._preparing():
                self._graphs[kind] = self._captured(len(steps), given)
        graph, memory = self._graphs[kind]
        memory.copy_from(given)
        graph.replay()

    def _try_out(self, given: Records) -> None:
        """Take a step without a graph, and find out whether any half waits for the device in it."""
        with self._preparing(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self._compute([given])
            finally:
                torch.cuda.set_sync_debug_mode("default")
            self._stream.synchronize()
        self._untimed += len(given)
        self._can_capture = not any("synchronizing CUDA operation" in str(each.message) for each in said)
        if not self._can_capture:
            reason = "a half of a party's own waits for the device in its forward or backward pass"
            self._label.setup.watching.notice(f"a step on the GPU takes longer than it could: {reason}")

    def _captured(self, steps: int, like: Records) -> tuple[torch.cuda.CUDAGraph, Records]:
        """Return a graph of n steps, and the memory from which it reads their records; nothing is computed yet."""
        graph, memory, size = torch.cuda.CUDAGraph(), like.empty(), len(like) // steps
        # Nothing else may use the device while a graph is captured: no other thread, and no object that is let go.
        self._orders.wait()
        self._stream.synchronize()
        gc.disable()
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._compute([memory[start : start + size] for start in range(0, len(memory), size)])
        finally:
            gc.enable()
        return graph, memory

    def _compute(self, batches: Sequence[Records]) -> None:
        """Take a step for each batch, as `tpsl.training.stages.steps` has it: part by part, then all updates."""
        at_once, beside = self._schedule.part_rows, side_stream(self._label.party.device)
        for batch in batches:
            parts = [batch[start : start + at_once] for start in range(0, len(batch), at_once)]
            # Gradients of several parts are added up, and not beside.
            with beside.open() if len(parts) == 1 else nullcontext():
                for part in parts:
                    self._learn(part, len(batch), is_last=part is parts[-1])
                for role in self._features:
                    role.party.update()

    def _learn(self, part: Records, count: int, *, is_last: bool) -> None:
        """Take all parties forwards and backwards on a part of a batch of n records."""
        label, parties = self._label.party, [role.party for role in self._features]
        at_label, *at_features = part.rows
        cuts = [party.forward(rows) for party, rows in zip(parties, at_features, strict=True)]
        gradients = label.backward_from(part.evidence, at_label, [self._crossed(cut) for cut in cuts], count)
        if is_last:
            label.update()
        for party, gradient in zip(parties, gradients, strict=True):
            party.backward(self._crossed(gradient), count)

    def _crossed(self, tensor: Tensor) -> Tensor:
        """Return what arrives at the other party."""
        wire = self._label.job.training.wire
        return tensor if wire == "float32" else rounded(tensor, wire)

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        self._stream.synchronize()
        begun = time.perf_counter()
        yield
        self._prepared += time.perf_counter() - begun


@dataclass(frozen=True)
class Records:
    """Some records in order: the `evidence` of their noisy labels, of each draw, and their `rows` in the table of each
    party."""

    evidence: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]

    def __getitem__(self, part: slice) -> Records:
        return self._each(lambda values: values[part])

    def __len__(self) -> int:
        return len(self.rows[0])

    def empty(self) -> Records:
        """Return memory for as many records."""
        return self._each(torch.empty_like)

    def copy_from(self, other: Records) -> None:
        """Take over other records, as many."""
        for target, source in zip((*self.evidence, *self.rows), (*other.evidence, *other.rows), strict=True):
            target.copy_(source)

    def ordered(self, order: Tensor) -> Records:
        """Return copies of the records at these positions."""
        return self._each(lambda values: values.index_select(0, order))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Records:
        return Records(tuple(map(change, self.evidence)), tuple(map(change, self.rows)))


class EpochOrders:
    """The records of each epoch in the order of its steps; those of the next are sorted while one is trained."""

    def __init__(self, label: LabelRole, features: Sequence[FeatureRole]) -> None:
        schedule = label.schedule
        self._plan, self._device = schedule.plan, label.party.device
        self._epochs = schedule.total_steps // self._plan.batches_per_epoch
        labelled = self._on_device(schedule.among_labelled(schedule.trained))
        rows = (self._on_device(role.schedule.train[schedule.trained]) for role in (label, *features))
        self._records = Records(label.party.evidence(labelled), tuple(rows))
        torch.cuda.current_stream().synchronize()
        self._thread = ThreadPoolExecutor(1, "order of the next epoch")
        self._sorted: dict[int, Future[Records]] = {}

    def of_epoch(self, epoch: int) -> Records:
        """Return the records of an epoch, from 1; the device need not be waited for."""
        wanted = range(epoch, min(epoch + 1, self._epochs) + 1)
        self._sorted = {e: self._sorted.get(e) or self._thread.submit(self._ordered, e) for e in wanted}
        return self._sorted[epoch].result()

    def close(self) -> None:
        """Sort no further epoch; one that is being sorted is waited for."""
        self._thread.shutdown(cancel_futures=True)

    def wait(self) -> None:
        """Wait until nothing is being sorted."""
        for order in self._sorted.values():
            order.result()

    def _ordered(self, epoch: int) -> Records:
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            order = epoch_order(self._plan, epoch - 1, self._device)
            if order is None:
                return self._records
            found = self._records.ordered(order)
            torch.cuda.current_stream().synchronize()
        return found

    def _on_device(self, numbers: Rows) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device)


def epoch_order(plan: BatchPlan, epoch: int, device: torch.device) -> Tensor | None:
    """Return the positions of an epoch (from 0) in the order of its steps, sorted on the device; None: as they are.

    They are those of `plan.batch`, which sorts on the host, as windows of a blockwise order always are.
    """
    if plan.order == "blockwise":
        return torch.from_numpy(plan.epoch(epoch).copy()).to(device)
    words = plan.epoch_words(epoch)
    if words is None:
        return None
    # The words are unsigned, and PyTorch sorts signed ones: without their top bit's meaning the order is the same.
    signed = torch.from_numpy(words.view(np.int64)).to(device) ^ _TOP_BIT
    return torch.sort(signed).values & position_mask(plan.rows)
