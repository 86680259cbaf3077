"""The steps of all parties at once, where all of them are in this process on one CUDA device.

Inputs, noisy labels and the order of an epoch lie on the device. The loop's body (`tpsl.split.loop`) is captured once
for several steps as a CUDA graph, which reads its records from memory that is filled before each replay. Captured or
not, a step runs the same kernels on the parties' own weights and states, so a resumed run has the weights of an
unbroken one to the bit. What a graph cannot hold is said in one notice, and steps are launched one by one.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from tpsl.data.order import BatchPlan, Rows, position_mask
from tpsl.net.asking import AtHome, PassedOver
from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.net.rounding import NOT_FINITE_NUMBERS, rounded
from tpsl.run.role import FeatureRole, LabelRole
from tpsl.split.label_party import LabelParty
from tpsl.split.loop import Gradients, Step, take_steps

STEPS_AT_ONCE = 16
"""Steps in the largest graph; from one graph to the next the device idles for some microseconds."""
_AHEAD = 32
"""Graphs that may wait for the device; with more of them, progress would be shown long before there is any."""
_SLOWER = "a step on the GPU takes longer than it could"
_TOP_BIT = -(1 << 63)


def obstacle(label: LabelRole, features: Sequence[FeatureRole]) -> str | None:
    """Return why the steps of these roles, whose parties are built, cannot be taken at once; None if they can."""
    training, own = label.job.training, label.party.own
    if training.staleness:
        return "with training.staleness a feature party runs ahead"
    if training.wire == "float16":
        return "with training.wire float16 the host looks at every tensor"
    if type(label.party) is not LabelParty:
        return f"the label party is a {type(label.party).__name__}"
    if not all(party.resident_inputs for party in [*(role.party for role in features), *([own] if own else [])]):
        return "not all inputs are in the memory of the device"
    halves = [half for role in (label, *features) for half in role.halves.values()]
    return next(filter(None, (optimizer.obstacle_to_capture() for _, optimizer in halves)), None)


Records = list[tuple[Tensor, ...]]
"""Some records in order: the evidence of their noisy labels, of each draw; the inputs of the label party, if any; the
inputs of each feature party."""


class JointSteps:
    """Takes steps of all roles of a run at once: on a GPU, but where every message counts.

    At the end graphs have to be freed: one that the garbage collector found while that of another run is captured would
    spoil it.
    """

    def __init__(self, label: LabelRole, features: Sequence[FeatureRole], asked: AtHome) -> None:
        self._label, self._features, self._roles, self._asked = label, features, (label, *features), asked
        device = label.setup.device
        self._is_possible = device is not None and device.type == "cuda" and type(asked) is AtHome
        self._is_begun = False

    def take(self, stretch: range) -> float | None:
        """Take the steps; the parties of all roles are built. Return how long they took, or None.

        That is without what is done once: the first epoch is put into its order, graphs are captured, and kernels are
        compiled and loaded in the first step with batches of a size, whose records the speed does not count either.
        """
        if not self._is_possible or stretch.start < self._label.setup.record_steps:
            return None
        if not self._is_begun:
            if reason := obstacle(self._label, self._features):
                self._is_possible = False
                self._label.setup.watching.notice(f"{_SLOWER}: {reason}")
                return None
            self._begin()
        begun, self._prepared, self._untimed = time.perf_counter(), 0.0, 0
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            with nullcontext() if self._sizes else self._preparing():
                order = self._order_of(self._schedule.epoch_of(stretch.start))
            for launched, steps in enumerate(self._portions(stretch), 1):
                self._launch(steps, order)
                if launched % _AHEAD == 0:
                    self._stream.synchronize()
                records = self._schedule.records(steps.stop) - self._schedule.records(steps.start)
                for role in self._roles:
                    role.speed.count(steps.stop, records)
            self._stream.synchronize()
        for role in self._roles:
            role.speed.records -= self._untimed
        if not all(bool(p.isfinite().all()) for p in self._label.party.optimizer.parameters):
            sentence = f"after step {stretch.stop:,}: the weights of the label party {NOT_FINITE_NUMBERS}"
            raise BadMessage(sentence, NOT_FINITE)
        seconds = time.perf_counter() - begun - self._prepared
        self._asked.pass_over(PassedOver(stretch.stop, seconds))
        return seconds

    def _begin(self) -> None:
        """Put inputs and noisy labels onto the device."""
        label, self._schedule = self._label, self._label.schedule
        self._parties = [role.party for role in self._features]
        self._device = label.party.device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        trained, own = self._schedule.trained, label.party.own

        def on_device(numbers: Rows) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device)

        evidence = label.party.evidence(on_device(self._schedule.among_labelled(trained)))
        inputs = [party.resident_inputs if party is not None else () for party in (own, *self._parties)]
        self._all: Records = [evidence, *inputs]
        self._rows = [on_device(role.schedule.train[trained]) for role in self._roles]
        """Where the trained records are in the table of each party."""
        self._thread = ThreadPoolExecutor(1, "order of the next epoch")
        self._orders: dict[int, Future[Tensor]] = {}
        self._optimizers = [optimizer for role in self._roles for _, optimizer in role.halves.values()]
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Records]] = {}
        """By the number of steps and that of records."""
        self._sizes: set[int] = set()
        """Batches of these sizes have been trained on: what they need is compiled and loaded."""
        self._prepared, self._untimed = 0.0, 0
        brings_halves = any(role.own.bottom or role.own.top for role in self._roles)
        self._can_capture: bool | None = None if brings_halves else True
        """None: it has to be tried."""
        torch.cuda.current_stream().synchronize()
        self._is_begun = True

    def close(self) -> None:
        """Free the graphs, and let nothing be sorted any more."""
        if self._is_begun:
            self._thread.shutdown(cancel_futures=True)
            self._stream.synchronize()
            self._graphs.clear()

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

    def _launch(self, steps: range, order: Tensor) -> None:
        """Have the device take some steps; the first one with batches of a size without a graph."""
        size, first = self._schedule.plan.batch_size, steps.start % self._schedule.plan.batches_per_epoch
        positions = order[first * size : (first + len(steps)) * size]
        kind = len(steps), len(positions)
        if len(steps) == 1 and len(positions) not in self._sizes:
            with self._preparing():
                self._compute(self._gathered(positions), 1)
            self._sizes.add(len(positions))
            self._untimed += len(positions)
        elif self._can_capture is None:
            self._try_out(positions)
        elif not self._can_capture:
            self._compute(self._gathered(positions), 1)
        else:
            if kind not in self._graphs:
                with self._preparing():
                    self._graphs[kind] = self._captured(len(steps), positions)
            graph, memory = self._graphs[kind]
            self._gathered(positions, memory)
            graph.replay()
            for optimizer in self._optimizers:
                optimizer.count(len(steps))

    def _try_out(self, positions: Tensor) -> None:
        """Take a step without a graph, and find out whether any half waits for the device in it."""
        records = self._gathered(positions)
        with self._preparing(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self._compute(records, 1)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        self._untimed += len(positions)
        self._can_capture = not any("synchronizing CUDA operation" in str(each.message) for each in said)
        if not self._can_capture:
            reason = "a half of a party's own waits for the device in its forward or backward pass"
            self._label.setup.watching.notice(f"{_SLOWER}: {reason}")

    def _captured(self, steps: int, positions: Tensor) -> tuple[torch.cuda.CUDAGraph, Records]:
        """Return a graph of n steps, and the memory from which it reads their records; nothing is computed yet."""
        graph, memory = torch.cuda.CUDAGraph(), self._gathered(positions)
        # Nothing else may use the device while a graph is captured: no other thread, and no object that is let go.
        for order in self._orders.values():
            order.result()
        self._stream.synchronize()
        gc.disable()
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._compute(memory, steps)
        finally:
            gc.enable()
        for optimizer in self._optimizers:
            optimizer.count(-steps)
        return graph, memory

    def _compute(self, records: Records, steps: int) -> None:
        """Take n steps with the loop, on batches of one size: the label party's methods answer it."""
        label, wire, at_once = self._label.party, self._label.job.training.wire, self._schedule.part_rows
        size = len(records[-1][0]) // steps
        parts = [
            [
                [tuple(each[start : min(start + at_once, first + size)] for each in values) for values in records]
                for start in range(first, first + size, at_once)
            ]
            for first in range(0, steps * size, size)
        ]

        def crossed(tensors: list[Tensor]) -> list[Tensor]:
            return tensors if wire == "float32" else [rounded(each, wire) for each in tensors]

        def ask(step: int, part: int, embeddings: list[Tensor]) -> Gradients:
            evidence, own, *_ = parts[step][part]
            gradients = label.backward_from(evidence, own, crossed(embeddings), size)
            if part == len(parts[step]) - 1:
                label.update()
            return lambda: crossed(gradients)

        of_steps = (Step(step, size, tuple(tuple(part[2:]) for part in parts[step])) for step in range(steps))
        take_steps(self._parties, of_steps, ask, lambda step, exchanged: None)

    def _gathered(self, positions: Tensor, memory: Records | None = None) -> Records:
        """Return the records at these positions among the trained ones; in this memory, if it is given."""
        indices = [positions, *(rows.index_select(0, positions) for rows in self._rows)]
        return [
            tuple(torch.index_select(each, 0, index, out=out) for each, out in zip(values, outs, strict=False))
            for values, index, outs in zip(self._all, indices, memory or repeat(repeat(None)), strict=False)
        ]

    def _order_of(self, epoch: int) -> Tensor:
        """Return the positions of an epoch, from 1, in the order of its steps; that of the next is sorted meanwhile."""
        last = self._schedule.total_steps // self._schedule.plan.batches_per_epoch
        wanted = range(epoch, min(epoch + 1, last) + 1)
        self._orders = {e: self._orders.get(e) or self._thread.submit(self._sorted, e - 1) for e in wanted}
        return self._orders[epoch].result()

    def _sorted(self, epoch: int) -> Tensor:
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            order = epoch_order(self._schedule.plan, epoch, self._device)
            torch.cuda.current_stream().synchronize()
        return order

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """Leave out of the time what is done once."""
        self._stream.synchronize()
        begun = time.perf_counter()
        yield
        self._stream.synchronize()
        self._prepared += time.perf_counter() - begun


def epoch_order(plan: BatchPlan, epoch: int, device: torch.device) -> Tensor:
    """Return the positions of an epoch (from 0) in the order of its steps, sorted on the device.

    They are those of `plan.batch`, which sorts on the host, as windows of a blockwise order always are.
    """
    words = plan.epoch_words(epoch)
    if words is None:
        return torch.from_numpy(plan.epoch(epoch).copy()).to(device)
    # The words are unsigned, and PyTorch sorts signed ones: without their top bit's meaning the order is the same.
    signed = torch.from_numpy(words.view(np.int64)).to(device) ^ _TOP_BIT
    return torch.sort(signed).values & position_mask(plan.rows)
