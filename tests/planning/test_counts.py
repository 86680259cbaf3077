import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.data.order import split_rows
from tpsl.planning.counts import Counts
from tpsl.training.job import Job, make_job
from tpsl.training.schedule import Schedule


def job(**parts: dict[str, object]) -> Job:
    return make_job({"data": {"source": "synthetic", "rows": 100}, **parts}, {}, "a test")


@settings(max_examples=80)
@given(
    rows=st.integers(20, 3000),
    test_fraction=st.sampled_from([0.05, 0.2, 0.37]),
    training=st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 400),
            "epochs": st.integers(1, 5),
            "checkpoint_every": st.integers(1, 60),
            "validation": st.sampled_from([0.0, 0.1, 0.33]),
        }
    ),
    statistic=st.booleans(),
)
def test_they_are_those_of_the_schedule(
    rows: int, test_fraction: float, training: dict[str, object], statistic: bool
) -> None:
    method: dict[str, object] = {"method": "statistic"} if statistic else {}
    planned = job(data={"source": "synthetic", "test_fraction": test_fraction}, training=training, **method)  # type: ignore[arg-type]
    schedule = Schedule(planned, *split_rows(rows, "random", test_fraction, 0))
    counts = Counts.of(planned, rows)
    assert (counts.train, counts.test) == (len(schedule.train), len(schedule.test))
    assert (counts.held_out, counts.statistic) == (len(schedule.held_out), len(schedule.statistic))
    assert counts.trained == len(schedule.trained)
    assert counts.steps == schedule.total_steps
    assert counts.checkpoints == len(list(schedule.stretches(0)))
    assert counts.evaluated == sum(map(len, schedule.test_parts()))


def test_no_number_of_records_is_too_large() -> None:
    counts = Counts.of(job(training={"epochs": 1, "batch_size": 65_536}), 10**11)
    assert counts.steps == -(-80 * 10**9 // 65_536)
    with pytest.raises(ValueError, match="leaves none of a kind"):
        Counts.of(job(), 2)
