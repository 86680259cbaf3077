"""A feature party's service for its own clients: turns records into embeddings, or into scores of the label party."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from tpsl.progress import Notice
from tpsl.serving.batching import Array, Batcher
from tpsl.serving.common_calls import common_calls, json_object, shortest_decimals, text_field
from tpsl.serving.http_door import Answer, HttpDoor
from tpsl.serving.label_client import LabelClient
from tpsl.serving.models import FeatureModel, Records, checked_key, checked_records
from tpsl.serving.refusals import Reason, Refusal
from tpsl.serving.running import GRACE_SECONDS, when_free
from tpsl.serving.service_metrics import ServiceMetrics
from tpsl.serving.versions import Versions

_TRY_AGAIN_SECONDS = 1.0
_GATHER_SECONDS = 0.01
"""How long the first request of a batch waits for others: one call to the label party carries them all."""


@dataclass(frozen=True)
class FeatureOptions:
    """How a feature party serves."""

    run: Path
    party: str
    connect: str
    credentials: grpc.ChannelCredentials | None
    """None: no TLS, on loopback only."""
    http_port: int = 0
    deadline: float = 5.0
    """Seconds that a request may take, restarts of the label party included."""
    take_over: bool = False


class FeatureService:
    """Encodes and embeds records, and asks the label party for their scores."""

    def __init__(self, options: FeatureOptions, notice: Notice) -> None:
        """Read the model; the port is opened later."""
        self._options, self._notice = options, notice
        self._metrics = ServiceMetrics()
        load = partial(FeatureModel.load, party=options.party)
        self.versions = Versions(options.run, load, self._metrics, notice)
        self._unknown: FeatureModel | None = None
        self._unknown_until = 0.0
        self.party, self.http_port = options.party, 0

    async def open(self) -> None:
        """Open the HTTP door; the connection to the label party is made when it is needed."""
        options = self._options
        self._batcher = Batcher(self._metrics, _GATHER_SECONDS)
        self._client = LabelClient(options.connect, options.party, options.credentials, options.deadline)
        calls = common_calls(self.versions, self._metrics)
        calls |= {("GET", "/health"): self._health}
        calls |= {("POST", "/v1/embed"): self._embed, ("POST", "/v1/score"): self._score}
        self._door = HttpDoor(calls, self._metrics, self._notice)
        self.http_port = await when_free(lambda: self._door.open(options.http_port), options.take_over, self._notice)

    async def close(self) -> None:
        """Answer what is under way, and end the connection to the label party."""
        await self._door.close(GRACE_SECONDS)
        await self._client.close()

    async def _health(self, body: bytes) -> Answer:
        return Answer.of({"status": "serving", "label_party": self._client.is_healthy})

    async def _embed(self, body: bytes) -> Answer:
        records = checked_records(json_object(body).get("records"))
        model = self.versions.newest
        share = await self._share(model, records)
        return Answer.of({"version": model.name, "embeddings": share.tolist()})

    async def _score(self, body: bytes) -> Answer:
        content = json_object(body)
        records = checked_records(content.get("records"))
        key = checked_key(text_field(content, "key") or secrets.token_hex(16))
        newest, *before = self.versions.held
        if before and self._not_yet_known(newest):
            newest, before = before[0], []
        try:
            scores = await self._asked(newest, key, records)
        except Refusal as refusal:
            if refusal.reason != Reason.UNKNOWN_VERSION or not before:
                raise
            # The label party has not taken over the newest model yet, and goes on with the one before it.
            self._unknown, self._unknown_until = newest, time.monotonic() + _TRY_AGAIN_SECONDS
            scores = await self._asked(before[0], key, records)
        found = {"accepted": True} if scores is None else {"scores": shortest_decimals(scores)}
        return Answer.of({"key": key, **found})

    def _not_yet_known(self, model: FeatureModel) -> bool:
        """Whether the label party did not know this model a moment ago."""
        return model is self._unknown and time.monotonic() < self._unknown_until

    async def _asked(self, model: FeatureModel, key: str, records: Records) -> Array | None:
        return await self._client.score(model.name, key, await self._share(model, records))

    async def _share(self, model: FeatureModel, records: Records) -> Array:
        share: asyncio.Future[Array] = asyncio.get_running_loop().create_future()
        self._batcher.submit(model.half, model.half.encode(records), share)
        return await share
