"""The scoring services: the label party's, for feature parties and its own applications, and a feature party's."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import yaml

from tpsl.progress import Notice
from tpsl.run.job_sections import Returns
from tpsl.serving.batching import MOST_RECORDS, Array, Batcher
from tpsl.serving.gathering import Gathering, checked_key
from tpsl.serving.http_server import GRACE_SECONDS, Handler, HttpAccess, HttpServer
from tpsl.serving.label_client import LabelClient
from tpsl.serving.models import LabelModel, Records, TableHalf, Versions
from tpsl.serving.refusals import PortTaken, Reason, Refusal, ServiceMetrics
from tpsl.serving.score_port import ScorePort

_TRY_AGAIN_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 0.005
_GATHER_SECONDS = 0.01
"""How long the first request of a batch waits for others, which are computed with it."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class ServiceOptions:
    """How either party serves."""

    run: Path
    http: HttpAccess
    deadline: float = 5.0
    """Seconds that a request waits for other parties, and that the label party keeps its scores."""
    take_over: bool = False


class Service:
    """What both parties' services have in common: models, metrics, and a port for applications."""

    versions: Versions[Any]
    document: str
    """Which OpenAPI document describes the calls."""

    def __init__(self, options: ServiceOptions, notice: Notice) -> None:
        self._options, self._notice = options, notice
        self._metrics = ServiceMetrics()
        self.url, self._is_ready = "", False

    async def _open_http(self, score: Handler) -> None:
        """Open the port for applications."""
        handlers: dict[tuple[str, str], Handler] = {
            ("GET", "/healthz"): self._healthz,
            ("GET", "/ready"): self._ready,
            ("GET", "/openapi.json"): self._openapi,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/models"): self._reload,
            ("POST", "/v1/score"): score,
        }
        self._http = HttpServer(handlers, self._options.http, self._metrics, self._notice)
        self.url = await when_free(self._http.open, self._options.take_over, self._notice)

    async def _healthz(self, body: bytes) -> dict[str, Any]:
        return {"status": "serving"}

    async def _ready(self, body: bytes) -> dict[str, Any]:
        if not self._is_ready:
            raise Refusal(Reason.UNREACHABLE, "the service is starting or ending")
        return await self._healthz(body)

    async def _models(self, body: bytes) -> dict[str, Any]:
        return {"models": [model.name for model in self.versions.held]}

    async def _reload(self, body: bytes) -> dict[str, Any]:
        if _json_object(body):
            raise Refusal(Reason.MALFORMED, "send {}: the run folder stands on the command line; it may be a link")
        try:
            changed = await self.versions.reload()
        except (ValueError, OSError) as error:
            raise Refusal(Reason.MALFORMED, f"the model stays as it was: {error}") from error
        return {"changed": changed, **await self._models(body)}

    async def _openapi(self, body: bytes) -> dict[str, Any]:
        text = files("tpsl.serving").joinpath("openapi.yaml").read_text(encoding="utf-8")
        document: dict[str, Any] = yaml.safe_load(text)[self.document]
        newest: TableHalf | LabelModel = self.versions.newest
        if (half := newest if isinstance(newest, TableHalf) else newest.own) is not None:
            document["components"]["schemas"]["Record"] = half.record_schema()
        if self._options.http.token is not None:
            document["security"] = [{"token": []}]
        return document


class LabelService(Service):
    """Scores requests whose parts come from every party with a bottom half."""

    document = "label"

    def __init__(
        self,
        options: ServiceOptions,
        listen: str,
        credentials: grpc.ServerCredentials | None,
        notice: Notice,
        *,
        local_head: bool = False,
        returns: Returns | None = None,
    ) -> None:
        """Read the model; ports are opened later. Without credentials only a loopback address is listened at.

        `returns` is the most that a feature party gets back, whatever the job allows.
        """
        super().__init__(options, notice)
        load = partial(LabelModel.load, local_head=local_head, most_returned=returns)
        self.versions: Versions[LabelModel] = Versions(options.run, load, self._metrics, notice)
        self._listen, self._credentials, self.address = listen, credentials, ""

    async def open(self) -> None:
        """Open the port for applications, then the one for feature parties."""
        self._gathering = Gathering(self.versions, Batcher(self._metrics, _GATHER_SECONDS / 4), self._options.deadline)
        self._port = ScorePort(self._gathering, self._credentials, self._metrics, self._notice)
        await self._open_http(self._score)
        port = await when_free(lambda: self._port.open(self._listen), self._options.take_over, self._notice)
        self.address, self._is_ready = f"{self._listen.rpartition(':')[0]}:{port}", True

    async def close(self) -> None:
        """Close both; what is complete is still answered, what is not is refused as soon as the others know."""
        self._is_ready = False
        self._gathering.close()
        await asyncio.gather(self._port.close(GRACE_SECONDS), self._http.close())

    async def _score(self, body: bytes) -> dict[str, Any]:
        content = _json_object(body)
        if (key := _key(content)) is None:
            raise Refusal(Reason.MALFORMED, '"key" is missing: the feature parties send their shares under it')
        records = _records(content) if "records" in content else None
        scores = await self._gathering.wait(self._gathering.ask(key, records, len(body)))
        return {"key": key, "scores": _shortest_decimals(scores)}


class FeatureService(Service):
    """Encodes and embeds records, and asks the label party for their scores."""

    document = "feature"

    def __init__(
        self,
        options: ServiceOptions,
        party: str,
        connect: str,
        credentials: grpc.ChannelCredentials | None,
        notice: Notice,
    ) -> None:
        """Read the model; the port is opened later. Without credentials the label party must be on loopback."""
        super().__init__(options, notice)
        load = partial(TableHalf.open, party=party)
        self.versions: Versions[TableHalf] = Versions(options.run, load, self._metrics, notice)
        self.party, self._connect, self._credentials = party, connect, credentials
        self._unknown: TableHalf | None = None
        self._unknown_until = 0.0

    async def open(self) -> None:
        """Open the port for applications; the connection to the label party is made when it is needed."""
        self._batcher = Batcher(self._metrics, _GATHER_SECONDS)
        self._client = LabelClient(self._connect, self.party, self._credentials, self._options.deadline)
        await self._open_http(self._score)
        self._is_ready = True

    async def close(self) -> None:
        """Answer what is under way, and end the connection to the label party."""
        self._is_ready = False
        await self._http.close()
        await self._client.close()

    async def _healthz(self, body: bytes) -> dict[str, Any]:
        return {"status": "serving", "label_party": self._client.is_connected()}

    async def _score(self, body: bytes) -> dict[str, Any]:
        content = _json_object(body)
        records, key = _records(content), _key(content) or secrets.token_hex(16)
        newest, *before = self.versions.held
        if before and newest is self._unknown and time.monotonic() < self._unknown_until:
            newest, before = before[0], []  # the label party did not know the newest one a moment ago
        try:
            scores = await self._scores(newest, key, records)
        except Refusal as refusal:
            if refusal.reason != Reason.UNKNOWN_VERSION or not before:
                raise
            # The label party has not taken over the newest model yet, and goes on with the one before it.
            self._unknown, self._unknown_until = newest, time.monotonic() + _TRY_AGAIN_SECONDS
            scores = await self._scores(before[0], key, records)
        return {"key": key, **({"accepted": True} if scores is None else {"scores": _shortest_decimals(scores)})}

    async def _scores(self, half: TableHalf, key: str, records: Records) -> Array | None:
        share: asyncio.Future[Array] = asyncio.get_running_loop().create_future()
        self._batcher.submit(half, half.encode(records), share)
        return await self._client.score(half.name, key, await share)


async def when_free(open_port: Callable[[], Awaitable[Result]], take_over: bool, notice: Notice) -> Result:
    """Open a port; with `take_over`, as soon as the process that listens there now has closed it.

    So a service is replaced without a gap: the new process reads its model, waits here, and then the old one is ended.
    """
    told = False
    while True:
        try:
            return await open_port()
        except PortTaken as error:
            if not take_over:
                raise
            if not told:
                notice(f"ready; waiting until the port is free ({error})")
            told = True
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)


def run(service: LabelService | FeatureService, when_open: Callable[[], None]) -> signal.Signals:
    """Serve until SIGTERM or Ctrl-C, and return which of them came; on SIGHUP read the model again."""
    return asyncio.run(_run(service, when_open))


async def _run(service: LabelService | FeatureService, when_open: Callable[[], None]) -> signal.Signals:
    await service.open()
    came: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, came.put_nowait, number)
    when_open()
    while (number := await came.get()) == signal.SIGHUP:
        await service.versions.reload_and_tell()
    await service.close()
    return number


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(Reason.MALFORMED, f"the body is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise Refusal(Reason.MALFORMED, "the body is not a JSON object")
    return content


def _key(content: dict[str, Any]) -> str | None:
    key = content.get("key")
    if key is not None and not isinstance(key, str):
        raise Refusal(Reason.MALFORMED, f'"key" is a text, not {type(key).__name__}')
    return None if key is None else checked_key(key)


def _records(content: dict[str, Any]) -> Records:
    records = content.get("records")
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        raise Refusal(Reason.MALFORMED, '"records" is a list of objects {"column": value}, at least one')
    if len(records) > MOST_RECORDS:
        raise Refusal(Reason.TOO_LARGE, f"a request has at most {MOST_RECORDS:,} records, not {len(records):,}")
    return records


def _shortest_decimals(scores: Array) -> Any:
    """Return float32 scores as lists of the shortest numbers that stand for them: 0.6, not 0.6000000238418579."""
    return scores.astype(str).astype(np.float64).tolist()
