"""`tpsl score` and `tpsl score` as processes: restarts, take-overs, a new model, the end."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.ports import free_port

from tpsl.net.certificates import create_authority, issue
from tpsl.run.job import make_job
from tpsl.run.one_process import train

TABLE = "\n".join(
    ["id,colour,size,label", *(f"r{n},{'red' if n % 3 else 'blue'},{n % 50},{n % 2}" for n in range(600))]
)
JOB = {
    "privacy": {"epsilon": 4.0},
    "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8]},
    "training": {"batch_size": 128, "epochs": 1},
    "prediction": {"returns": "score"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `old` and `new`, which differ, and certificates."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "table.csv").write_text(TABLE)
    path = str(folder / "table.csv")
    own = {"path": path, "categorical": ["colour"], "numeric": ["size"]}
    data = {"source": "table", "features": [own], "label": {"path": path}}
    for seed, name in enumerate(("old", "new")):
        train(make_job({"data": data, **JOB}, {"training": {"seed": seed}}, "test"), folder / name)
    create_authority(folder / "authority")
    for party in ("label", "feature"):
        issue(folder / "authority", folder / "certs" / party, party)
    return folder


RECORDS = [{"colour": "red", "size": number} for number in range(8)]


class Site:
    """Both services in a folder of their own, which serve what `current` leads to."""

    def __init__(self, programs: Callable[..., Any], place: Path, folder: Path) -> None:
        self.programs, self.place, self.folder, self.link = programs, place, folder, folder / "current"
        self.link.symlink_to(place / "old")
        self.port, self.label_http, self.feature_http = (free_port() for _ in range(3))

    def label(self, *more: str) -> Any:
        door = ("--listen", f"127.0.0.1:{self.port}", "--certs", self.place / "certs/label", "--http", self.label_http)
        return self.programs(self.folder, "score", self.link, *door, *more, "--json")

    def feature(self, *more: str) -> Any:
        certs = ("--certs", self.place / "certs/feature", "--http", self.feature_http, "--set=local.deadline=20")
        where = ("--connect", f"127.0.0.1:{self.port}")
        return self.programs(self.folder, "score", self.link, *where, *certs, *more, "--json")

    def asked(self, path: str = "/v1/score", content: Any = None, *, at_label: bool = False) -> tuple[int, Any]:
        """Ask a door; one that is not open yet is asked again."""
        content = {"records": RECORDS} if content is None else content
        until = time.monotonic() + 60
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.label_http if at_label else self.feature_http)
            try:
                connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
                reply = connection.getresponse()
                return reply.status, json.loads(reply.read())
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.02)
            finally:
                connection.close()

    def scores(self) -> Any:
        status, content = self.asked()
        assert status == 200, content
        return np.asarray(content["scores"], dtype=np.float32)


@pytest.fixture
def site(programs: Callable[..., Any], place: Path, tmp_path: Path) -> Site:
    return Site(programs, place, tmp_path)


def opened(program: Any) -> dict[str, Any]:
    """Wait until a service is open, and return what it says of itself."""
    until = time.monotonic() + 60
    while not (text := program.process.stdout.read_text()):
        assert program.is_running() and time.monotonic() < until, program.log()
        time.sleep(0.02)
    content: dict[str, Any] = json.loads(text)
    return content


def waiting(program: Any) -> None:
    """Wait until a service has read its model and waits for its port."""
    until = time.monotonic() + 60
    while "ready; waiting until the port is free" not in program.log():
        assert program.is_running() and time.monotonic() < until, program.log()
        time.sleep(0.02)


def equal(scores: Any, others: Any) -> bool:
    """Whether scores are the same, as they are whatever other requests they were computed with."""
    return bool(np.allclose(scores, others, rtol=0, atol=1e-6))


def test_a_killed_label_party_costs_its_feature_party_no_request(site: Site) -> None:
    """The feature party holds what it was asked, and asks again when the label party is back."""
    label, feature = site.label(), site.feature()
    told = opened(label), opened(feature)
    assert told[0]["model"] == told[1]["model"]
    before = site.scores()
    label.signal(signal.SIGKILL)
    assert label.process.status(60) == -signal.SIGKILL
    with ThreadPoolExecutor(4) as clients:
        asked: list[Future[Any]] = [clients.submit(site.scores) for _ in range(4)]
        time.sleep(0.3)
        assert not any(answer.done() for answer in asked)
        opened(site.label())
        assert all(equal(answer.result(60), before) for answer in asked)
    # And the feature party's process may die and come back too.
    feature.signal(signal.SIGKILL)
    assert feature.process.status(60) == -signal.SIGKILL
    opened(site.feature())
    assert np.array_equal(site.scores(), before)


def test_a_service_is_replaced_without_a_gap(site: Site) -> None:
    """The new process waits for the ports of the old one, which answers what it was asked and ends."""
    label, feature = site.label(), site.feature()
    opened(label), opened(feature)
    before, answered = site.scores(), 0
    for start in (site.label, site.feature):
        old, new = (label, start("--take-over")) if start == site.label else (feature, start("--take-over"))
        waiting(new)
        with ThreadPoolExecutor(2) as clients:
            asked = [clients.submit(site.scores) for _ in range(30)]
            old.signal(signal.SIGTERM)
            answered += sum(equal(answer.result(60), before) for answer in asked)
        assert old.process.status(60) == 128 + signal.SIGTERM
        opened(new)
    assert answered == 60


def test_a_hangup_reads_the_run_folder_again(site: Site) -> None:
    label, feature = site.label(), site.feature()
    old, before = opened(label)["model"], site.scores()
    opened(feature)
    site.link.unlink()
    site.link.symlink_to(site.place / "new")
    for service in (label, feature):
        service.signal(signal.SIGHUP)
        until = time.monotonic() + 60
        while "now serving the model" not in service.log():
            assert time.monotonic() < until, service.log()
            time.sleep(0.02)
    assert not np.allclose(site.scores(), before, rtol=0, atol=1e-4)
    status, held = site.asked("/v1/models", {}, at_label=True)
    assert (status, held["changed"], held["models"][1]) == (200, False, old)
    feature.signal(signal.SIGINT), label.signal(signal.SIGINT)
    assert (feature.process.status(60), label.process.status(20)) == (0, 0)


def test_what_cannot_be_served_is_one_sentence(site: Site, tpsl: Callable[..., Any], tmp_path: Path) -> None:
    certs = ("--certs", site.place / "certs/label")
    assert "a label party needs --listen HOST:PORT" in tpsl("score", site.link, *certs).error()
    listen = ("--listen", f"127.0.0.1:{site.port}")
    assert "is not a run folder" in tpsl("score", tmp_path, *listen, *certs).error()
    assert (
        "the run has no local head"
        in tpsl("score", site.link, *listen, *certs, "--head", "local", "--set=local.returns=nothing").error()
    )
    assert "never leave the label party" in tpsl("score", site.link, *listen, *certs, "--head", "local").error()
    with socket.create_server(("127.0.0.1", site.port)):
        assert f"cannot listen at 127.0.0.1:{site.port}" in tpsl("score", site.link, *listen, *certs).error()
    open_to_all = tpsl("score", site.link, *listen, *certs, "--http", "0.0.0.0:0", "--json")
    assert open_to_all.code() == "http-unprotected"
    insecure = tpsl("score", site.link, "--listen", "0.0.0.0:0", "--set=local.insecure_loopback=true").error()
    assert "without certificates only a loopback address will do" in insecure
    where = ("--connect", f"127.0.0.1:{site.port}")
    assert (
        "holds the certificate of 'label'"
        in tpsl("score", site.link, *where, *certs, "--set=local.party=feature").error()
    )
