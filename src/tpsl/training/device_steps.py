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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain

import torch
from torch import Tensor

from tpsl.kernels.side_stream import early_stream, side_stream
from tpsl.net.checks import NOT_FINITE_NUMBERS
from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.net.rounding import rounded
from tpsl.training.device_order import EpochOrders, Records
from tpsl.training.role import FeatureRole, LabelRole

STEPS_AT_ONCE = 16
"""Steps in the largest graph; from one graph to the next the device idles for some microseconds."""
_AHEAD = 4
"""Graphs that may wait for the device; with more of them, progress would be shown long before there is any."""


class DeviceSteps:
    """Takes steps of the label party and of all feature parties of a run."""

    def __init__(self, label: LabelRole, features: Sequence[FeatureRole]) -> None:
        self._label, self._features, self._schedule = label, features, label.schedule
        self._stream = torch.cuda.Stream(label.party.device)  # type: ignore[no-untyped-call]
        self._orders = EpochOrders(label, features)
        self._optimizers = [optimizer for role in (label, *features) for _, optimizer in role.halves.values()]
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
                epoch = self._orders.of_epoch(self._schedule.epoch_of(stretch.start))
            for steps in self._portions(stretch):
                self._launch(steps, epoch)
                under_way.append(self._stream.record_event())
                if len(under_way) > _AHEAD:
                    under_way.popleft().synchronize()
                for role in (self._label, *self._features):
                    role.speed.count(
                        steps.stop, self._schedule.records(steps.stop) - self._schedule.records(steps.start)
                    )
            self._stream.synchronize()
        for role in (self._label, *self._features):
            role.speed.records -= self._untimed
        if not all(bool(p.isfinite().all()) for p in self._label.party.optimizer.parameters):
            sentence = f"after step {stretch.stop:,}: the weights of the label party {NOT_FINITE_NUMBERS}"
            raise BadMessage(sentence, NOT_FINITE)
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
        for optimizer in self._optimizers:
            optimizer.count(len(steps))

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
        for optimizer in self._optimizers:
            optimizer.count(-steps)
        return graph, memory

    def _compute(self, batches: Sequence[Records]) -> None:
        """Take a step for each batch, as `tpsl.training.stages.steps` has it: part by part, then all updates."""
        at_once, device = self._schedule.part_rows, self._label.party.device
        by_step = [[batch[start : start + at_once] for start in range(0, len(batch), at_once)] for batch in batches]
        following = iter([*chain.from_iterable(by_step), None][1:])
        beside, early = side_stream(device), early_stream(device)
        early.wait_stream(torch.cuda.current_stream())
        for batch, parts in zip(batches, by_step, strict=True):
            # Gradients of several parts are added up, and not beside.
            with beside.open() if len(parts) == 1 else nullcontext():
                for part in parts:
                    self._learn(part, next(following), len(batch), is_last=part is parts[-1])
                for role in self._features:
                    role.party.update()
        torch.cuda.current_stream().wait_stream(early)

    def _learn(self, part: Records, following: Records | None, count: int, *, is_last: bool) -> None:
        """Take all parties forwards and backwards on a part of a batch of n records; gather what the next one needs."""
        label, parties = self._label.party, [role.party for role in self._features]
        at_label, *at_features = part.rows
        cuts = [party.forward(rows) for party, rows in zip(parties, at_features, strict=True)]
        gradients = label.backward_from(part.evidence, at_label, [self._crossed(cut) for cut in cuts], count)
        if is_last:
            label.update()
        if following is not None:
            for party, rows in zip([label.own, *parties], following.rows, strict=True):
                if party is not None:
                    party.expect(rows)
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
