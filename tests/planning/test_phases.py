from dataclasses import replace
from pathlib import Path

import pytest

from tpsl.party.wide import MOST_RECORDS
from tpsl.planning.counts import Counts
from tpsl.planning.phases import Line, Phases, TimeModel
from tpsl.planning.rehearsal import Rehearsal
from tpsl.planning.stopwatch import STARTED, Stamp, Stopwatch, stamps_in
from tpsl.training.job import Job, make_job

TRUTH = {"start": 3.0, "set up": 0.5, "each row": 0.001, "step": 0.02, "evaluation": 0.1, "each evaluated": 0.002}
TRUTH |= {"checkpoint": 0.25, "waits": 0.05, "end": 0.2, "each row of the end": 0.0005, "exit": 1.0}


def job(rows: int, epochs: int = 2) -> Job:
    training = {"batch_size": 10, "epochs": epochs, "checkpoint_every": 12, "patience": 0}
    return make_job({"data": {"source": "synthetic", "rows": rows}, "training": training}, {}, "a test")


def as_if(rows: int, epochs: int = 2, begun: float = 100.0) -> Rehearsal:
    """A rehearsal that took what TRUTH says."""
    counts = Counts.of(job(rows, epochs), rows)
    stamps = [Stamp(STARTED, 0, begun + TRUTH["start"], 0.0)]

    def after(event: str, seconds: float) -> None:
        stamps.append(Stamp(event, step, stamps[-1].seconds + seconds, 0.0))

    step = 0
    waits = TRUTH["set up"] + TRUTH["each row"] * rows
    for step in range(1, counts.steps + 1):
        after("step", TRUTH["step"] + waits)
        waits = 0.0
        ends = step % counts.batches == 0
        if ends:
            after("epoch", TRUTH["evaluation"] + TRUTH["each evaluated"] * counts.evaluated)
        if ends or step % 12 == 0:
            after("checkpoint", TRUTH["checkpoint"])
            waits = TRUTH["waits"]
    after("finished", TRUTH["end"] + TRUTH["each row of the end"] * rows)
    seconds = stamps[-1].seconds + TRUTH["exit"] - begun
    return Rehearsal(job(rows, epochs), counts, begun, seconds, {"label": stamps}, {"label": 0}, {"label": 0}, None)


def test_a_rehearsal_is_taken_apart() -> None:
    found = Phases.of(as_if(400))
    assert found.programs == pytest.approx(TRUTH["start"] + TRUTH["exit"])
    assert found.set_up == pytest.approx(TRUTH["set up"] + 400 * TRUTH["each row"])
    assert found.step == pytest.approx(TRUTH["step"])
    assert found.evaluation == pytest.approx(TRUTH["evaluation"] + 80 * TRUTH["each evaluated"])
    assert found.end == pytest.approx(TRUTH["end"] + 400 * TRUTH["each row of the end"])
    assert found.checkpoint == pytest.approx(TRUTH["checkpoint"] + TRUTH["waits"])


def test_two_rehearsals_predict_a_third() -> None:
    model = TimeModel.of([as_if(200), as_if(800)])
    truth = as_if(40_000, epochs=3)
    predicted = model.seconds(truth.counts)
    assert sum(predicted.values()) == pytest.approx(truth.seconds, rel=1e-3)
    assert predicted["steps"] == pytest.approx(3 * 3200 * TRUTH["step"])


def test_the_wide_part_is_no_part_of_the_set_up() -> None:
    plain = as_if(400)
    assert Phases.of(plain).wide == 0.0
    begun = plain.stamps["label"][0].seconds + 0.4
    stamps = [
        Stamp(STARTED, 0, begun - 0.4, 0.0),
        Stamp("wide part", 0, begun, 0.0),
        Stamp("step", 1, begun + 0.3, 0.0),
    ]
    found = Phases.of(replace(plain, stamps={**plain.stamps, "feature": stamps}))
    assert found.wide == pytest.approx(0.3)
    assert found.set_up == pytest.approx(TRUTH["set up"] + 400 * TRUTH["each row"] - 0.3)


def test_the_wide_part_of_many_records_has_fewer_folds_and_that_of_more_than_can_be_fitted_takes_no_longer() -> None:
    model = replace(TimeModel.of([as_if(200), as_if(800)]), wide=Line(1.0, 1e-6))

    def seconds(rows: int) -> float:
        counts = Counts.of(job(rows), rows)
        return model.seconds(counts)["wide part"]

    assert seconds(5_000_000) == pytest.approx(1 + 5 * 4)  # of which four fifths are trained on
    assert seconds(10_000_000) == pytest.approx(1 + 2 * 8)
    assert seconds(10**9) == seconds(10**8) == pytest.approx(1 + 2 * MOST_RECORDS / 1e6)


def test_a_job_without_a_network_is_all_end() -> None:
    stamps = [Stamp(STARTED, 0, 12.0, 0.0), Stamp("finished", 0, 19.0, 0.0)]
    found = Phases.of(Rehearsal(job(100), Counts.of(job(100), 100), 10.0, 10.0, {"label": stamps}, {}, {}, None))
    assert (found.programs, found.end, found.step) == (3.0, 7.0, 0.0)


def test_lines_never_fall_below_nothing() -> None:
    assert Line.through([(10, 2.0), (30, 4.0)]).at(100) == pytest.approx(11.0)
    assert Line.through([(10, 5.0), (30, 4.0)]) == Line(4.0, 0.0)  # noise
    assert Line.through([(10, 1.0), (30, 9.0)]) == Line(0.0, 0.3)
    assert Line.through([(20, 4.0)]) == Line(0.0, 0.2)
    assert Line.through([(0, 0.0)]) == Line(0.0, 0.0)


def test_a_stopwatch_is_read_while_it_runs(tmp_path: Path) -> None:
    assert stamps_in(tmp_path / "none") == []
    watch = Stopwatch(tmp_path / "stamps")
    watch.at_step(1, 2, 10)
    watch.event("checkpoint", step=1)
    watch.at_step(2, 2, 20)
    found = stamps_in(tmp_path / "stamps")
    assert [(stamp.event, stamp.step) for stamp in found] == [(STARTED, 0), ("step", 1), ("checkpoint", 1)]
    assert found == sorted(found, key=lambda stamp: stamp.seconds)
