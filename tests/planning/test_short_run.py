"""A short run with a wide part takes what was predicted from a shorter one.

In real processes, so it takes seconds: what a fork has is that of another process as well.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tpsl.planning.counts import Counts
from tpsl.planning.memory import peak_bytes
from tpsl.planning.phases import Phases, TimeModel
from tpsl.planning.rehearsal import Deployment, Rehearsal, rehearse
from tpsl.training.job import make_job


def ran(rows: int, folder: Path) -> Rehearsal:
    content = {
        "data": {"source": "synthetic", "rows": rows, "numeric_fields": 3, "categorical_fields": 2},
        "model": {"embedding_dim": 4, "bottom": [32], "top": [8], "wide": True},
        "training": {"batch_size": 2000, "epochs": 1, "patience": 0},
    }
    return rehearse(make_job(content, {}, "a test"), Deployment(), folder / str(rows))


@pytest.mark.long
def test_a_short_run_takes_what_was_predicted_from_a_shorter_one(tmp_path: Path) -> None:
    short, long = ran(10_000, tmp_path), ran(100_000, tmp_path)
    for party, fields in (("label", 0), ("feature", 5)):
        predicted = peak_bytes([short], party, long.counts, fields)
        assert predicted > long.own_bytes[party] > 10**8
        own = short.own_bytes[party] + predicted - short.peak_bytes[party]
        assert 0.7 < own / long.own_bytes[party] < 1.5
    fits = [Phases.of(each).wide for each in (short, long)]
    assert 0 < fits[0] < short.seconds and 0 < fits[1] < long.seconds
    between = TimeModel.of([short, long]).seconds(Counts.of(long.job, 50_000))["wide part"]
    assert 0 < between <= max(fits)
