"""Trained runs to serve, certificates, and both services in one process over mutual TLS."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.net.certificates import Certificates
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.serving.http_server import HttpAccess
from tpsl.serving.services import FeatureService, LabelService, ServiceOptions

SHOP = {"party": "shop", "categorical": ["colour"], "numeric": ["size"], "dates": ["bought"]}
BANK = {"party": "bank", "numeric": ["amount"]}


def table(count: int) -> str:
    """Records of all parties, with missing values, as CSV."""
    rng = np.random.default_rng(0)
    lines = ["id,colour,size,bought,amount,kind,label"]
    for number in range(count):
        colour, kind = rng.choice(["red", "green", "blue", ""]), rng.choice(["new", "old"])
        size = "" if rng.random() < 0.1 else f"{rng.normal(10, 3):.3f}"
        day = f"2024-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}"
        lines.append(f"r{number},{colour},{size},{day},{rng.exponential(5):.3f},{kind},{int(rng.random() < 0.4)}")
    return "\n".join(lines)


@pytest.fixture(scope="session")
def served_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished runs, each with all its parties in one folder.

    `alone`: one feature party, whose clients get scores; the label party has labels only. `newer`: the same with
    another seed. `joint`: two feature parties, a label party with features of its own, rounded scores.
    `local`: one feature party with a pre-trained half, and a local head; nothing comes back.
    """
    folder = tmp_path_factory.mktemp("served")
    file = folder / "table.csv"
    file.write_text(table(600))

    def run(name: str, features: list[dict[str, Any]], label: dict[str, Any], returns: str, **training: Any) -> None:
        parts = [{"path": str(file), **part} for part in features]
        content = {
            "data": {"source": "table", "features": parts, "label": {"path": str(file), **label}},
            "privacy": {"epsilon": 4.0},
            "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8]},
            "training": {"batch_size": 128, "epochs": 1, "patience": 0, **training},
            "prediction": {"returns": returns},
        }
        train(make_job(content, {}, "test"), folder / name)

    run("alone", [SHOP], {}, "score")
    run("newer", [SHOP], {}, "score", seed=1)
    run("joint", [SHOP, BANK], {"categorical": ["kind"]}, "rounded")
    pretrain = {"method": "masked", "epochs": 1}
    run("local", [SHOP], {}, "nothing", head="local", pretrain=pretrain)
    return folder


async def happens(condition: Callable[[], bool]) -> None:
    """Wait, for a minute at most, until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Reply:
    """What an HTTP server has answered."""

    status: int
    content: Any
    headers: dict[str, str]


def ask(port: int, path: str, content: Any = None) -> Reply:
    """POST content as JSON, or GET without any."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        if content is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(content).encode(), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text, is_json = reply.read(), reply.headers["Content-Type"] == "application/json"
        return Reply(reply.status, json.loads(text) if is_json else text.decode(), dict(reply.headers))
    finally:
        connection.close()


def port_of(service: LabelService | FeatureService) -> int:
    """The port for a service's applications."""
    return int(service.url.rpartition(":")[2])


@dataclass
class Served:
    """The services of a run; clients ask from threads of their own."""

    label: LabelService
    features: dict[str, FeatureService]
    notices: list[str]

    async def ask(self, party: str, path: str, content: Any = None) -> Reply:
        service = self.label if party == "label" else self.features[party]
        return await asyncio.to_thread(ask, port_of(service), path, content)

    async def score(self, party: str, records: list[dict[str, Any]], key: str | None = None) -> Reply:
        return await self.ask(party, "/v1/score", {"records": records, **({"key": key} if key else {})})


@pytest.fixture
def serve(certificates: Path) -> Callable[..., Any]:
    """Serve a run: `async with serve(run, "shop") as served`."""

    @asynccontextmanager
    async def start(
        run: Path,
        *parties: str,
        feature_run: Path | None = None,
        deadline: float = 5.0,
        http: HttpAccess | None = None,
        **options: Any,
    ) -> AsyncIterator[Served]:
        notices: list[str] = []
        http = http or HttpAccess()
        credentials = Certificates.load(certificates / "label").server()
        asked = ServiceOptions(run, http, deadline)
        label = LabelService(asked, "127.0.0.1:0", credentials, notices.append, **options)
        await label.open()
        later = ServiceOptions(feature_run or run, http, deadline + 1.0)  # so that the label party's sentences arrive
        features = {}
        for party in parties:
            own = Certificates.load(certificates / party).channel()
            features[party] = FeatureService(later, party, label.address, own, notices.append)
            await features[party].open()
        try:
            yield Served(label, features, notices)
        finally:
            for service in features.values():
                await service.close()
            await label.close()

    return start
