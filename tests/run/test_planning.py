"""What a job will take, by arithmetic, and compared with the bytes of real connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ports import free_port

from tpsl.data.order import split_rows
from tpsl.net.certificates import create_authority, issue
from tpsl.run.job import Job, make_job
from tpsl.run.local import Local
from tpsl.run.observer import UNWATCHED, Fact, Observer, Watching
from tpsl.run.over_network import join, serve
from tpsl.run.planning import (
    Counts,
    Exchange,
    exchanges,
    total,
)
from tpsl.run.schedule import Schedule
from tpsl.run.stages import METHODS

TWO_PARTIES = {
    "source": "table",
    "features": [{"path": f"{name}.csv", "party": name, "numeric": ["x"]} for name in ("shop", "bank")],
    "label": {"path": "label.csv"},
}


def job(data: dict[str, Any] | None = None, **parts: Any) -> Job:
    return make_job({"data": data or {"source": "synthetic", "rows": 100}, **parts}, {}, "a test")


@settings(max_examples=80)
@given(
    rows=st.integers(20, 3000),
    test_fraction=st.sampled_from([0.05, 0.2, 0.37]),
    training=st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 400),
            "epochs": st.integers(1, 5),
            "validation": st.sampled_from([0.0, 0.1, 0.33]),
        }
    ),
    statistic=st.booleans(),
)
def test_they_are_those_of_the_schedule(
    rows: int, test_fraction: float, training: dict[str, object], statistic: bool
) -> None:
    method: dict[str, object] = {"method": "statistic"} if statistic else {}
    planned = job({"source": "synthetic", "test_fraction": test_fraction}, training=training, **method)
    schedule = Schedule(planned, *split_rows(rows, "random", test_fraction, 0))
    counts = Counts.of(planned, rows)
    assert (counts.train, counts.test) == (len(schedule.train), len(schedule.test))
    assert (counts.held_out, counts.statistic) == (len(schedule.held_out), len(schedule.statistic))
    assert counts.trained == len(schedule.trained)
    assert counts.steps == schedule.total_steps
    assert counts.evaluated == sum(map(len, schedule.test_parts()))


def test_no_number_of_records_is_too_large() -> None:
    counts = Counts.of(job(training={"epochs": 1, "batch_size": 65_536}), 10**11)
    assert counts.steps == -(-80 * 10**9 // 65_536)
    with pytest.raises(ValueError, match="leaves none of a kind"):
        Counts.of(job(), 2)


def crossing(planned: Job, rows: int) -> dict[str, Exchange]:
    return {each.method: each for each in exchanges(planned, Counts.of(planned, rows))}


def test_every_question_is_counted() -> None:
    jobs = (
        job(model={"wide": True, "bottom": [16]}, training={"validation": 0.1, "head": "local"}),
        job(method="statistic"),
        job(training={"exchange": "labels"}),
    )
    found = {name: exchange for planned in jobs for name, exchange in crossing(planned, 100_000).items()}
    assert found.keys() == set(METHODS)
    assert {method for method, each in found.items() if each.down} == {"Estimates", "Step", "NoisyLabels"}
    assert {method for method, each in found.items() if each.up} == {"Step", "Evaluate", "Statistic", "Head"}


def test_rows_are_those_of_all_epochs() -> None:
    found = crossing(job(training={"epochs": 3, "batch_size": 100, "validation": 0.25}), 10_000)
    assert (found["Step"].rows, found["Step"].calls) == (3 * 6000, 3 * 60)
    assert (found["Evaluate"].rows, found["Evaluate"].calls) == (3 * 4000, 3)
    assert found["Step"].bytes(to_label=False) == pytest.approx(found["Step"].bytes(to_label=True), rel=1e-3)


def test_each_feature_party_has_its_own_width() -> None:
    planned = job(TWO_PARTIES, model={"cut": {"shop": 8, "bank": 64}})
    found = exchanges(planned, Counts.of(planned, 1000))
    widths = {each.party: each.up for each in found if each.method == "Step"}
    assert widths == {"shop": 8, "bank": 64}
    alone = sum(each.bytes(to_label=True) for each in found)
    assert total(found, to_label=True, connections=2) - alone == 2 * (total([], to_label=True, connections=1))


def test_a_noisy_label_takes_its_bits() -> None:
    few, many = (
        crossing(job(privacy={"mechanism": name, "epsilon": 1.0}, training={"exchange": "labels"}), 10**6)
        for name in ("discrete", "laplace")
    )
    assert few["NoisyLabels"].bytes(to_label=False) == pytest.approx(800_000 / 8, rel=0.06)
    assert many["NoisyLabels"].bytes(to_label=False) > 5 * few["NoisyLabels"].bytes(to_label=False)


@pytest.mark.parametrize(("wire", "bytes_a_record"), [("float32", 512), ("bfloat16", 256), ("int8", 132)])
def test_frames_and_tls_add_little_to_large_messages(wire: str, bytes_a_record: int) -> None:
    found = crossing(job(training={"wire": wire, "batch_size": 8192, "epochs": 1}), 10**6)["Step"]
    assert 1.001 < found.bytes(to_label=True) / (800_000 * bytes_a_record) < 1.003


SMALL: dict[str, Any] = {
    "data": {"source": "synthetic", "rows": 3000, "numeric_fields": 3, "categorical_fields": 2},
    "model": {"embedding_dim": 4, "bottom": [32], "top": [8]},
    "training": {"batch_size": 100, "epochs": 2, "validation": 0.1, "patience": 0},
}


class Listening(Observer):
    """Knows when the label party listens: connections that come too early would be counted."""

    def __init__(self) -> None:
        self.listens = threading.Event()

    def event(self, name: str, **facts: Fact) -> None:
        if name == "listening":
            self.listens.set()


@pytest.mark.parametrize(
    "training",
    [{}, {"wire": "int8", "micro_batches": 3, "staleness": 1, "head": "local"}, {"exchange": "labels"}],
    ids=["split", "parts", "handed over"],
)
def test_what_crosses_is_what_was_computed(
    training: dict[str, object], tmp_path: Path, tcp_proxy: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPSL_HOME", str(tmp_path / "home"))
    planned = make_job(SMALL, {"training": training}, "a test")
    create_authority(tmp_path / "authority")
    for party in ("label", "feature"):
        issue(tmp_path / "authority", tmp_path / party, party)
    address = f"127.0.0.1:{free_port()}"
    proxy = tcp_proxy(address)
    label = Local(listen=address, certificates=tmp_path / "label", wait=120.0)
    feature = Local(connect=proxy.address, certificates=tmp_path / "feature", wait=120.0)
    with ThreadPoolExecutor() as pool:
        observer = Listening()
        serving = pool.submit(serve, planned, label, tmp_path / "run-label", watching=Watching(observer))
        assert observer.listens.wait(60)
        join(planned, "feature", feature, tmp_path / "run-feature", watching=UNWATCHED)
        serving.result(60)
    crossed, carried = exchanges(planned, Counts.of(planned, 3000)), proxy.count()
    for to_label, counted in ((True, carried["forward"]), (False, carried["back"])):
        # Questions that wait for an answer are asked again after a time; where little crosses they show.
        assert total(crossed, to_label=to_label, connections=1) == pytest.approx(counted, rel=0.02, abs=1000)
