"""Flights, trained by workers that a Ray cluster on this machine starts: weights are those of one process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.ports import free_port

from tpsl.net.certificates import create_authority, issue

LIMIT = 240.0
SECRET = "a key of object storage"
SMALL: dict[str, Any] = {
    "privacy": {"mechanism": "discrete", "epsilon": 1.0},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 50, "epochs": 4, "checkpoint_every": 10, "patience": 0},
}
HALVES = ("feature/bottom.safetensors", "label/top.safetensors")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Path]:
    """A cluster of four CPUs, found by the processes that this one starts; yields the folder of what it writes."""
    ray = pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="r") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        options: dict[str, Any] = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False}
        found = ray.init("local", num_cpus=4, _temp_dir=folder, **options)
        patch.setenv("RAY_ADDRESS", found.address_info["gcs_address"])
        yield Path(folder)
        ray.shutdown()


@pytest.fixture
def office(tmp_path: Path, tpsl: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Parquet files of an airport and of an airline, their job, certificates, and what one process trains."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(LIMIT))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    tpsl("research", "data", "flights", "--out", tmp_path, "--rows", 2000, "--set=data.layout=all", "--json").json()
    content = yaml.safe_load((tmp_path / "job.yaml").read_text())
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**content, **SMALL}))
    create_authority(tmp_path / "authority")
    for party in ("label", "feature"):
        issue(tmp_path / "authority", tmp_path / "certs" / party, party)
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
def test_both_parties_train_on_ray_and_survive_a_kill(
    cluster: Path, office: Path, programs: Callable[..., Any]
) -> None:
    """The label party is told to end and begins again; one of the two workers of the feature party is killed later."""
    address, options = f"127.0.0.1:{free_port()}", ("--set=local.log=json", "--json")
    serve = ("label", "serve", "job.yaml", "--vault", "vault", "--listen", address, "--certs", "certs/label")
    join = ("feature", "join", "job.yaml", "--connect", address, "--certs", "certs/feature", "--ray", 2)
    log = office / "label-run-ray" / "worker-0.log"
    label = programs(office, *serve, "--out", "label-run", "--ray", 1, *options, installed=True)
    wait_for(log, "listening")
    label.signal(signal.SIGTERM)
    assert label.outcome().status == 128 + signal.SIGTERM
    until = time.monotonic() + LIMIT
    while workers_of(log):
        assert time.monotonic() < until
        time.sleep(0.1)
    label = programs(office, *serve, "--out", "label-run", "--ray", 1, *options, installed=True)
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
def test_workers_train_as_one_process_and_ray_writes_no_key_of_theirs(
    cluster: Path, office: Path, programs: Callable[..., Any]
) -> None:
    command = ("train", "job.yaml", "--vault", "vault", "--out", "there", "--ray", 2, "--json")
    there = programs(office, *command, installed=True).result()
    assert there["run"] == "there" and there["steps"] > 0
    for half in HALVES:
        assert_same_weights(office / "alone" / half, office / "there" / half)
    assert {path.name for path in (office / "there-ray").glob("*.log")} == {"worker-0.log", "worker-1.log"}
    written = [path for root in (cluster, office) for path in root.rglob("*") if path.is_file()]
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.long
def test_a_feature_party_learns_alone_on_ray(
    cluster: Path, office: Path, tpsl: Any, programs: Callable[..., Any]
) -> None:
    given = ("vault", "release", "vault", "--epsilon", 1, "--certs", "certs/label", "--out", "given", "--json")
    tpsl(*given).json()
    command = ("train", "job.yaml", "--labels", "given", "--certs", "certs/feature")
    here = tpsl(*command, "--out", "here", "--json").json()
    there = programs(office, *command, "--out", "there", "--ray", 2, "--json", installed=True).result()
    assert there["steps"] == here["steps"] > 0
    for half in HALVES:
        assert_same_weights(office / "here" / half, office / "there" / half)


@pytest.mark.long
def test_an_error_is_the_one_that_a_worker_has_raised(
    cluster: Path, office: Path, programs: Callable[..., Any]
) -> None:
    (office / "given").mkdir()
    outcome = programs(
        office, "train", "job.yaml", "--labels", "given", "--set=local.party=feature", "--ray", 1, installed=True
    ).outcome()
    assert outcome.status == 1 and "given" in outcome.error() and "Ray" not in outcome.error()


def test_what_is_not_installed_and_who_does_not_answer_is_one_sentence(
    tpsl: Any, small_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", small_job, "--out", tmp_path / "out", "--ray", 1)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        assert "pip install 'tpsl[ray]'" in tpsl(*command).error()
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "127.0.0.1:99999"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert tpsl(*command).error().startswith("error: no Ray cluster can be reached")
    assert tpsl(*command[:-1], 0).status == 2


# In a separate process, because a Ray cluster in this one would be shared with the other tests.
ALONE = """
import os
from tpsl.cli.on_ray import _connect

os.umask(0o022)
_connect(1)
import ray
session = ray._private.worker._global_node.get_session_dir_path()
print(session, ray.get(ray.remote(lambda: oct(os.umask(0o077))).remote()), oct(os.umask(0)))
"""


@pytest.mark.long
def test_what_a_cluster_that_is_made_for_a_command_writes_is_its_owners_only() -> None:
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environment = {**variables, "RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled"}
        ran = subprocess.run([sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, check=True)
    session, of_workers, of_the_command = ran.stdout.split()
    assert session.startswith(folder) and (of_workers, of_the_command) == ("0o77", "0o22")
