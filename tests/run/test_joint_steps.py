"""The order of an epoch, sorted by PyTorch, is the one of the plan."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tpsl.data.order import BatchPlan, Order
from tpsl.run.joint_steps import epoch_order

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["shuffled", "blockwise", "arrival"])
def test_the_order_of_an_epoch_is_that_of_the_plan(kind: Order) -> None:
    for rows in (1, 2, 1000, 4097):
        plan = BatchPlan(rows, 100, 3, kind)
        for epoch in range(2):
            steps = range(epoch * plan.batches_per_epoch, (epoch + 1) * plan.batches_per_epoch)
            order = epoch_order(plan, epoch, CPU)
            assert np.array_equal(order.numpy(), np.concatenate([plan.batch(step) for step in steps]))
