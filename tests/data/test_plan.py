import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.data.order import BatchPlan

PLANS = st.builds(
    BatchPlan,
    st.integers(1, 400),
    st.integers(1, 120),
    st.integers(0, 2**63 - 1),
    st.sampled_from(["shuffled", "blockwise", "arrival"]),
)


@given(PLANS, st.integers(0, 3))
def test_an_epoch_visits_every_row_exactly_once(plan: BatchPlan, epoch: int) -> None:
    first = plan.steps(epoch)
    batches = [plan.batch(step) for step in range(first, first + plan.batches_per_epoch)]
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(plan.rows))
    assert all(len(batch) == plan.batch_size for batch in batches[:-1])
    assert len(batches[-1]) == plan.rows - plan.batch_size * (plan.batches_per_epoch - 1)


@given(PLANS, st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_a_step_is_the_same_whenever_it_is_asked_for(plan: BatchPlan, steps: list[int]) -> None:
    in_order = {step: plan.batch(step).copy() for step in range(51)}
    again = dataclasses.replace(plan)
    assert all(np.array_equal(again.batch(step), in_order[step]) for step in steps)


def test_literal_batches_never_change() -> None:
    plan = BatchPlan(rows=10, batch_size=4, seed=0)
    assert [plan.batch(step).tolist() for step in range(6)] == [
        [0, 4, 9, 7],
        [1, 5, 6, 3],
        [8, 2],
        [8, 7, 3, 5],
        [1, 2, 4, 6],
        [9, 0],
    ]
    assert plan.digest() == "94c0c6fb57305a991e4c928e904824979d1975eaa2391ed96cef671b2e04dfc8"


def test_another_process_computes_the_same_plan() -> None:
    code = "from tpsl.data.order import BatchPlan as P; p = P(1000, 64, 3); print(p.digest(), p.batch(40).tolist())"
    plan = BatchPlan(1000, 64, 3)
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == f"{plan.digest()} {plan.batch(40).tolist()}"


def test_epochs_and_seeds_differ() -> None:
    plan = BatchPlan(1000, 1000, 0)
    assert not np.array_equal(plan.batch(0), plan.batch(1))
    assert not np.array_equal(plan.batch(0), BatchPlan(1000, 1000, 1).batch(0))


def test_arrival_keeps_the_order_of_the_rows() -> None:
    plan = BatchPlan(7, 3, 5, "arrival")
    assert [plan.batch(step).tolist() for step in range(4)] == [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2]]


def test_digests_differ_exactly_where_plans_do() -> None:
    plans = [BatchPlan(100, 10, 0), BatchPlan(101, 10, 0), BatchPlan(100, 11, 0), BatchPlan(100, 10, 1)]
    plans += [BatchPlan(100, 10, 0, "arrival"), BatchPlan(100, 10, 0, "blockwise")]
    assert len({plan.digest() for plan in plans}) == len(plans)
    assert BatchPlan(100, 10, 0).digest() == plans[0].digest()


def test_a_batch_cannot_be_changed_by_its_user() -> None:
    for order in ("shuffled", "blockwise", "arrival"):
        with pytest.raises(ValueError, match="read-only"):
            BatchPlan(10, 4, 0, order).batch(0)[0] = 5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [((0, 1, 0), "0 and 1"), ((1, 0, 0), "1 and 0"), ((1, 1, -2), "-2"), ((1, 1, 0, "sorted"), "'sorted'")],
)
def test_an_impossible_plan_is_refused(arguments: tuple[int, int, int], culprit: str) -> None:
    with pytest.raises(ValueError, match=culprit):
        BatchPlan(*arguments)


def test_there_is_no_step_before_the_first() -> None:
    with pytest.raises(ValueError, match="no step -1"):
        BatchPlan(10, 4, 0).batch(-1)
