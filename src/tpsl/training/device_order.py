"""The order of an epoch's records on a device: what their noisy labels say, and which rows of its table each party
reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tpsl.data.order import BatchPlan, Rows, position_mask
from tpsl.training.role import FeatureRole, LabelRole

_TOP_BIT = -(1 << 63)


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
