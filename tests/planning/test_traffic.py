"""What crosses, by arithmetic; `test_rehearsal.py` and `tests/cli/test_plan.py` compare it with counted bytes."""

from __future__ import annotations

from typing import Any

import pytest

from tpsl.planning.counts import Counts
from tpsl.planning.traffic import Exchange, exchanges, total
from tpsl.training.job import Job, make_job
from tpsl.training.stages import TOPICS

TWO_PARTIES = {
    "source": "table",
    "features": [{"path": f"{name}.csv", "party": name, "numeric": ["x"]} for name in ("shop", "bank")],
    "label": {"path": "label.csv"},
}


def job(data: dict[str, Any] | None = None, **parts: Any) -> Job:
    return make_job({"data": data or {"source": "synthetic", "rows": 100}, **parts}, {}, "a test")


def crossing(planned: Job, rows: int, pairs: int = 1) -> dict[str, Exchange]:
    return {each.topic: each for each in exchanges(planned, Counts.of(planned, rows), pairs)}


def test_every_topic_is_counted() -> None:
    everything = job(
        model={"wide": True, "bottom": [16]}, training={"validation": 0.1, "head": "local"}, method="refit"
    )
    found = crossing(everything, 100_000) | crossing(job(training={"exchange": "labels"}), 100_000)
    assert found.keys() == set(TOPICS)
    assert {topic for topic, each in found.items() if not each.to_label} == {
        *("estimates", "gradients", "noisy labels")
    }


def test_rows_are_those_of_all_epochs() -> None:
    found = crossing(job(training={"epochs": 3, "batch_size": 100, "validation": 0.25}), 10_000)
    assert (found["embeddings"].rows, found["embeddings"].messages) == (3 * 6000, 3 * 60)
    assert (found["test embeddings"].rows, found["test embeddings"].messages) == (3 * 4000, 3)
    assert found["gradients"].bytes == pytest.approx(found["embeddings"].bytes, rel=1e-3)


def test_workers_divide_batches_not_records() -> None:
    planned = job(training={"batch_size": 1000, "micro_batches": 2})
    one, six = (crossing(planned, 10_000, pairs)["embeddings"] for pairs in (1, 6))
    assert six.rows == one.rows and six.messages == 6 * one.messages
    assert one.bytes < six.bytes < 1.01 * one.bytes


def test_each_feature_party_has_its_own_width() -> None:
    planned = job(TWO_PARTIES, model={"cut": {"shop": 8, "bank": 64}})
    found = exchanges(planned, Counts.of(planned, 1000))
    widths = {each.party: each.width for each in found if each.topic == "embeddings"}
    assert widths == {"shop": 8, "bank": 64}
    alone = sum(each.bytes for each in found if each.to_label)
    assert total(found, to_label=True, connections=2) - alone == 2 * (total([], to_label=True, connections=1))


def test_a_noisy_label_takes_its_bits() -> None:
    few, many = (
        crossing(job(privacy={"mechanism": name, "epsilon": 1.0}, training={"exchange": "labels"}), 10**6)
        for name in ("discrete", "laplace")
    )
    assert few["noisy labels"].bytes == pytest.approx(800_000 / 8, rel=0.05)
    assert many["noisy labels"].bytes > 5 * few["noisy labels"].bytes


@pytest.mark.parametrize(("wire", "bytes_a_record"), [("float32", 512), ("bfloat16", 256), ("int8", 132)])
def test_frames_and_tls_add_little_to_large_messages(wire: str, bytes_a_record: int) -> None:
    found = crossing(job(training={"wire": wire, "batch_size": 8192, "epochs": 1}), 10**6)["embeddings"]
    assert 1.001 < found.bytes / (800_000 * bytes_a_record) < 1.003
