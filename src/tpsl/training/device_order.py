"""The order of an epoch's records on a device: which rows of its table each party reads, and which noisy labels go
with them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tpsl.data.order import position_mask
from tpsl.data.plan import BatchPlan
from tpsl.data.split import Rows
from tpsl.training.role import Role

_TOP_BIT = -(1 << 63)


@dataclass(frozen=True)
class Records:
    """Some records in order: the places of their noisy labels, and their `rows` in the table of each party."""

    labelled: Tensor
    rows: tuple[Tensor, ...]

    def __getitem__(self, part: slice) -> Records:
        return Records(self.labelled[part], tuple(rows[part] for rows in self.rows))

    def __len__(self) -> int:
        return len(self.labelled)

    def empty(self, count: int) -> Records:
        """Return memory for n records."""
        return Records(self.labelled.new_empty(count), tuple(rows.new_empty(count) for rows in self.rows))

    def copy_from(self, other: Records) -> None:
        """Take over other records, as many."""
        for target, source in zip((self.labelled, *self.rows), (other.labelled, *other.rows), strict=True):
            target.copy_(source)


class EpochOrders:
    """The records of each epoch in the order of its steps; those of the next are sorted while one is trained."""

    def __init__(self, roles: Sequence[Role], device: torch.device) -> None:
        schedule = roles[0].schedule
        self._plan, self._device = schedule.plan, device
        self._epochs = schedule.total_steps // self._plan.batches_per_epoch
        labelled = schedule.among_labelled(schedule.trained)
        self._records = Records(
            self._on_device(labelled), tuple(self._on_device(role.schedule.train[schedule.trained]) for role in roles)
        )
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
            found = self._records.empty(len(order))
            torch.index_select(self._records.labelled, 0, order, out=found.labelled)
            for source, target in zip(self._records.rows, found.rows, strict=True):
                torch.index_select(source, 0, order, out=target)
            torch.cuda.current_stream().synchronize()
        return found

    def _on_device(self, numbers: Rows) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device)


def epoch_order(plan: BatchPlan, epoch: int, device: torch.device) -> Tensor | None:
    """Return the positions of an epoch (from 0) in the order of its steps, sorted on the device; None: as they are.

    They are those of `plan.batch`, which sorts on the host.
    """
    words = plan.epoch_words(epoch)
    if words is None:
        return None
    # The words are unsigned, and PyTorch sorts signed ones: without their top bit's meaning the order is the same.
    signed = torch.from_numpy(words.view(np.int64)).to(device) ^ _TOP_BIT
    return torch.sort(signed).values & position_mask(plan.rows)
