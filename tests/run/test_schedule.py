"""The schedule: every record once an epoch, whatever the parts; stretches end where checkpoints are."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tpsl.run.job import make_job
from tpsl.run.schedule import Schedule
from tpsl.workers import Workers


def schedule(rows: int = 1000, test_rows: int = 20_000, **training: Any) -> Schedule:
    job = make_job(
        {"data": {"source": "synthetic"}, "training": {"batch_size": 96, "patience": 0, **training}}, {}, "test"
    )
    return Schedule(job, np.arange(rows), np.arange(rows, rows + test_rows))


@pytest.mark.parametrize("micro_batches", [1, 2, 5, 96, 200])
def test_parts_are_the_batch_in_order(micro_batches: int) -> None:
    plan = schedule(micro_batches=micro_batches)
    for step in range(plan.total_steps):
        parts = plan.parts(step)
        assert np.array_equal(np.concatenate(parts), plan.plan.batch(step))
        assert all(0 < len(part) <= plan.largest_part for part in parts)
        assert len(parts) <= max(1, min(micro_batches, 96))
    assert len(plan.parts(0)) == min(micro_batches, 96)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_workers_of_a_party_share_every_part(count: int) -> None:
    for rows in (0, 1, 5, 96):
        shares = [Workers(number, count).own_rows(rows) for number in range(count)]
        assert np.array_equal(np.concatenate([np.arange(rows)[share] for share in shares]), np.arange(rows))
        sizes = [share.stop - share.start for share in shares]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("start", [0, 1, 7, 10, 11, 21])
def test_stretches_end_at_checkpoints_and_epochs(start: int) -> None:
    plan = schedule(epochs=2, checkpoint_every=7)  # 11 steps an epoch
    stretches = list(plan.stretches(start))
    assert [step for stretch in stretches for step in stretch] == list(range(start, 22))
    assert {stretch.stop for stretch in stretches} == {end for end in (7, 11, 14, 21, 22) if end > start}
    assert all(one.stop == other.start for one, other in pairwise(stretches))
    assert [done for done in range(1, 23) if plan.epoch_ends(done)] == [11, 22]
    assert list(plan.stretches(22)) == []


def test_test_records_come_in_parts_of_bounded_size() -> None:
    plan = schedule(test_rows=40_000)
    assert np.array_equal(np.concatenate(plan.test_parts()), plan.test)
    assert max(len(part) for part in plan.test_parts()) == plan.largest_part == 16_384


def test_records_count_as_often_as_they_are_used() -> None:
    plan = schedule(epochs=3)
    counted = 0
    for step in range(plan.total_steps):
        assert plan.records(step) == counted
        counted += len(plan.plan.batch(step))
    assert plan.records(plan.total_steps) == counted == 3000


@pytest.mark.parametrize("validation", [0.2, 0.0])
def test_held_out_trained_and_statistic_share_the_training_records(validation: float) -> None:
    job = make_job(
        {
            "data": {"source": "synthetic"},
            "training": {"batch_size": 96, "validation": validation, "patience": 0},
            "statistic": {},
        },
        {},
        "test",
    )
    plan = Schedule(job, np.arange(1000), np.arange(1000, 1500))
    parts = [plan.held_out, plan.statistic, plan.trained]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert len(plan.statistic) == 1000 - len(plan.held_out)
    assert np.array_equal(plan.labelled, np.sort(np.concatenate([plan.held_out, plan.trained])))
    assert np.array_equal(plan.labelled[plan.among_labelled(plan.held_out)], plan.held_out)
    assert plan.total_steps == 0
