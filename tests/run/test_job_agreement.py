"""What the handshake compares: every field of the job but paths, and the ids in their order."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tpsl.run.job import Job, make_job
from tpsl.run.job_agreement import agreement, ids_digest
from tpsl.run.schedule import Schedule

IDS = pa.array([f"r{number}" for number in range(50)])


def job(content: dict[str, Any] | None = None, path: str = "a.csv") -> Job:
    data = {
        "source": "table",
        "features": [{"path": path, "numeric": [f"number {n}" for n in range(300)]}],
        "label": {"path": f"label-{path}"},
    }
    return make_job({"data": data, **(content or {})}, {}, "test")


def fields(of: Job, ids: Any = IDS) -> dict[str, str]:
    return dict(agreement(of, ids, Schedule(of, np.arange(40), np.arange(40, 50))).fields)


def test_where_files_lie_is_not_compared() -> None:
    assert fields(job(path="/a/b.csv")) == fields(job(path="c.csv"))
    assert job(path="/a/b.csv").digest() == job(path="c.csv").digest()
    assert not any("/a/b.csv" in value for value in fields(job(path="/a/b.csv")).values())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"training": {"epochs": 3}}, "job.training.epochs"),
        ({"training": {"staleness": 1}}, "job.training.staleness"),
        ({"training": {"feature_optimizer": {"learning_rate": 0.5}}}, "job.training.feature_optimizer.learning_rate"),
        ({"privacy": {"epsilon": 2.0}}, "job.privacy.epsilon"),
        ({"model": {"bottom": [64, 32]}}, "job.model.bottom"),
    ],
)
def test_the_first_field_that_differs_is_the_one_that_was_changed(change: dict[str, Any], field: str) -> None:
    mine, theirs = fields(job()), fields(job(change))
    assert next(iter(mine)) == "protocol version"
    assert list(mine) == list(theirs)
    assert next(name for name in mine if mine[name] != theirs[name]) == field
    assert mine["digest of the job"] != theirs["digest of the job"]


def test_no_field_is_longer_than_the_wire_takes() -> None:
    assert max(len(value) for value in fields(job()).values()) <= 400


def test_the_number_of_records_is_compared() -> None:
    assert fields(job())["number of records"] == "50"
    assert fields(job(), IDS[:49])["number of records"] == "49"


def test_ids_in_another_order_or_form_have_another_digest() -> None:
    ids = ["ab", "c", "", "ü", "abc"]
    same = [
        pa.array(ids),
        pa.array(ids, pa.large_string()),
        pa.array(["x", *ids])[1:],
        pa.chunked_array([ids[:2], ids[2:]]),
    ]
    assert len({ids_digest(each) for each in same}) == 1
    others = [ids[::-1], ["a", "bc", "", "ü", "abc"], ids[:4], [*ids, ""], ["ab", "c", "ü", "", "abc"]]
    assert len({ids_digest(pa.array(each)) for each in [ids, *others]}) == 1 + len(others)
