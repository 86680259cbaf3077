"""The order of an epoch, sorted by PyTorch, is the one of the plan."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tpsl.data.order import BatchPlan, Order
from tpsl.training.device_order import Records, epoch_order

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["shuffled", "blockwise"])
def test_the_order_of_an_epoch_is_that_of_the_plan(kind: Order) -> None:
    for rows in (1, 2, 1000, 4097):
        plan = BatchPlan(rows, 100, 3, kind)
        for epoch in range(2):
            steps = range(epoch * plan.batches_per_epoch, (epoch + 1) * plan.batches_per_epoch)
            order = epoch_order(plan, epoch, CPU)
            assert order is not None
            assert np.array_equal(order.numpy(), np.concatenate([plan.batch(step) for step in steps]))


def test_records_in_order_of_arrival_need_no_order() -> None:
    assert epoch_order(BatchPlan(10, 3, order="arrival"), 0, CPU) is None


def test_records_are_cut_and_copied() -> None:
    records = Records((torch.arange(6),), (torch.arange(6) * 10, torch.arange(6) * 100))
    part = records[2:5]
    memory = part.empty()
    memory.copy_from(part)
    assert len(memory) == 3
    assert memory.evidence[0].tolist() == [2, 3, 4]
    assert [rows.tolist() for rows in memory.rows] == [[20, 30, 40], [200, 300, 400]]
    assert [rows.tolist() for rows in memory.ordered(torch.tensor([2, 0])).rows] == [[40, 20], [400, 200]]
