from __future__ import annotations

import pytest

from tpsl.bench.measurements import FULL, QUICK, Size
from tpsl.training.device_steps import STEPS_AT_ONCE


@pytest.mark.parametrize("size", [FULL, QUICK])
def test_a_turn_on_a_gpu_never_needs_more_steps_than_there_are_records_for(size: Size) -> None:
    """A GPU takes the steps of a whole graph at once: a turn of another length would be longer than planned."""
    on_gpu = size.on("cuda")
    for shape in (on_gpu.shape, on_gpu.small_batches, on_gpu.large):
        assert shape.device == "cuda"
        assert on_gpu.pace.most_steps(shape.batch) % STEPS_AT_ONCE == 0
    assert on_gpu.pace.warm_up == STEPS_AT_ONCE
    assert size.on("cpu").pace == size.pace
