"""The label party's scoring service: a gRPC port for feature parties and an HTTP door for its own applications."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from tpsl.progress import Notice
from tpsl.serving.batching import Batcher
from tpsl.serving.common_calls import common_calls, json_object, shortest_decimals, text_field
from tpsl.serving.gathering import Gathering
from tpsl.serving.http_door import Answer, HttpDoor
from tpsl.serving.models import LabelModel, checked_records
from tpsl.serving.refusals import Reason, Refusal
from tpsl.serving.running import GRACE_SECONDS, when_free
from tpsl.serving.score_port import ScorePort
from tpsl.serving.service_metrics import ServiceMetrics
from tpsl.serving.versions import Versions
from tpsl.training.job_sections import Returns


@dataclass(frozen=True)
class LabelOptions:
    """How the label party serves."""

    run: Path
    listen: str
    credentials: grpc.ServerCredentials | None
    """None: no TLS, on loopback only."""
    http_port: int = 0
    deadline: float = 5.0
    """Seconds that a request waits for all its parts, and that its scores are kept."""
    take_over: bool = False
    local_head: bool = False
    returns: Returns | None = None
    """The most that a feature party gets back, whatever the job allows."""


class LabelService:
    """Scores requests whose parts come from every party with a bottom half."""

    def __init__(self, options: LabelOptions, notice: Notice) -> None:
        """Read the model; ports are opened later."""
        self._options, self._notice = options, notice
        self._metrics = ServiceMetrics()
        load = partial(LabelModel.load, local_head=options.local_head, most_returned=options.returns)
        self.versions = Versions(options.run, load, self._metrics, notice)
        self.address, self.http_port = "", 0

    async def open(self) -> None:
        """Open the HTTP door, then the port for feature parties."""
        options = self._options
        self._gathering = Gathering(self.versions, Batcher(self._metrics), options.deadline)
        calls = common_calls(self.versions, self._metrics)
        calls |= {("GET", "/health"): self._health, ("POST", "/v1/score"): self._score}
        self._door = HttpDoor(calls, self._metrics, self._notice)
        self._port = ScorePort(self._gathering, options.credentials, self._metrics, self._notice)
        self.http_port = await when_free(lambda: self._door.open(options.http_port), options.take_over, self._notice)
        port = await when_free(lambda: self._port.open(options.listen), options.take_over, self._notice)
        self.address = f"{options.listen.rpartition(':')[0]}:{port}"

    async def close(self) -> None:
        """Close both; what is complete is still answered, what is not is refused as soon as the others know."""
        self._gathering.close()
        await asyncio.gather(self._port.close(GRACE_SECONDS), self._door.close(GRACE_SECONDS))

    async def _health(self, body: bytes) -> Answer:
        return Answer.of({"status": "serving"})

    async def _score(self, body: bytes) -> Answer:
        content = json_object(body)
        key = text_field(content, "key")
        if key is None:
            raise Refusal(Reason.MALFORMED, '"key" is missing: the feature parties send their shares under it')
        records = checked_records(content["records"]) if "records" in content else None
        scores = await self._gathering.wait(self._gathering.ask(key, records, len(body)))
        return Answer.of({"key": key, "scores": shortest_decimals(scores)})
