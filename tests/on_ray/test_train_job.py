"""Flights, trained on a Ray cluster: by two parties over mutual TLS, and by a feature party alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.ports import free_port

from tpsl.transport.certificates import create_authority, issue

LIMIT = 240.0
SMALL: dict[str, Any] = {
    "privacy": {"mechanism": "discrete", "epsilon": 1.0},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 50, "epochs": 4, "checkpoint_every": 10, "patience": 0},
}


@pytest.fixture
def office(cluster: Any, tmp_path: Path, tpsl: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Parquet files of an airport and of an airline, their job, certificates, and what one process trains."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(LIMIT))
    tpsl("data", "flights", "--out", tmp_path, "--rows", 2000, "--layout", "all", "--json").json()
    content = yaml.safe_load((tmp_path / "job.yaml").read_text())
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**content, **SMALL}))
    create_authority(tmp_path / "authority")
    for party in ("label", "feature"):
        issue(tmp_path / "authority", tmp_path / "certs" / party, party, label=party == "label")
    tpsl("train", "job.yaml", "--vault", "vault", "--out", "alone", "--json").json()
    return tmp_path


def workers_of(log: Path) -> list[int]:
    """Return the processes of the cluster that write this log."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_of_ray = (process / "cmdline").read_bytes().startswith(b"ray::")
            if is_of_ray and any(descriptor.resolve() == log for descriptor in (process / "fd").iterdir()):
                found.append(int(process.name))
        except OSError:  # it has ended
            continue
    return found


def wait_for(log: Path, event: str, times: int = 1) -> None:
    until = time.monotonic() + LIMIT
    while not log.exists() or log.read_text().count(f'"event": "{event}"') < times:
        assert time.monotonic() < until, log.read_text() if log.exists() else f"no {log}"
        time.sleep(0.02)


def assert_same_weights(one: Path, other: Path) -> None:
    expected, found = load_file(one), load_file(other)
    assert expected.keys() == found.keys()
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=0, atol=1e-5)


@pytest.mark.long
def test_both_parties_train_on_ray_and_survive_a_kill(office: Path, programs: Callable[..., Any]) -> None:
    """The label party is told to end and begins again; one of the two workers of the feature party is killed later.

    The weights are those of one process.
    """
    address, options = f"127.0.0.1:{free_port()}", ("--ray", "--log-json", "--json")
    serve = ("label", "serve", "job.yaml", "--vault", "vault", "--listen", address, "--certs", "certs/label")
    join = ("feature", "join", "job.yaml", "--connect", address, "--certs", "certs/feature", "--ray-workers", 2)
    log = office / "label-run-ray" / "worker-0.log"
    label = programs(office, *serve, "--out", "label-run", *options, installed=True)
    wait_for(log, "listening")
    label.signal(signal.SIGTERM)
    assert label.outcome().status == 128 + signal.SIGTERM
    until = time.monotonic() + LIMIT
    while workers_of(log):
        assert time.monotonic() < until
        time.sleep(0.1)
    label = programs(office, *serve, "--out", "label-run", *options, installed=True)
    feature = programs(office, *join, "--out", "feature-run", *options, installed=True)
    logs = office / "feature-run-ray"
    wait_for(logs / "worker-0.log", "checkpoint", 2)
    (second,) = workers_of(logs / "worker-1.log")
    os.kill(second, signal.SIGKILL)
    result = label.result()
    assert feature.result()["steps"] == result["steps"] > 0
    assert feature.events("resumed"), feature.log()
    assert_same_weights(office / "alone/label/top.safetensors", office / "label-run/label/top.safetensors")
    half = "feature/bottom.safetensors"
    assert_same_weights(office / "alone" / half, office / "feature-run" / half)


@pytest.mark.long
def test_a_feature_party_learns_alone_on_ray(office: Path, tpsl: Any) -> None:
    given = ("vault", "hand-over", "vault", "--epsilon", 1, "--certs", "certs/label", "--out", "given", "--json")
    tpsl(*given).json()
    command = ("learn", "job.yaml", "--labels", "given", "--certs", "certs/feature")
    here = tpsl(*command, "--out", "here", "--json").json()
    there = tpsl(*command, "--out", "there", "--ray", "--ray-workers", 2, "--json").json()
    assert there["steps"] == here["steps"] > 0
    for half in ("feature/bottom.safetensors", "label/top.safetensors"):
        assert_same_weights(office / "here" / half, office / "there" / half)
