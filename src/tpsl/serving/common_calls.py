"""What both parties' HTTP doors have in common: calls for metrics and models, and how they read and write JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tpsl.serving.batching import Array
from tpsl.serving.http_door import Answer, Handler
from tpsl.serving.refusals import Reason, Refusal
from tpsl.serving.service_metrics import ServiceMetrics
from tpsl.serving.versions import Model, Versions


def common_calls(versions: Versions[Model], metrics: ServiceMetrics) -> dict[tuple[str, str], Handler]:
    """Return the handlers by method and path."""

    async def metrics_text(body: bytes) -> Answer:
        return Answer.text(metrics.exposition())

    async def models(body: bytes) -> Answer:
        return Answer.of({"models": [model.name for model in versions.held]})

    async def reload(body: bytes) -> Answer:
        if json_object(body):
            raise Refusal(Reason.MALFORMED, "send {}: the run folder stands on the command line; it may be a link")
        try:
            changed = await versions.reload()
        except (ValueError, OSError) as error:
            raise Refusal(Reason.MALFORMED, f"the model stays as it was: {error}") from error
        return Answer.of({"changed": changed, "models": [model.name for model in versions.held]})

    return {("GET", "/metrics"): metrics_text, ("GET", "/v1/models"): models, ("POST", "/v1/models"): reload}


def shortest_decimals(scores: Array) -> Any:
    """Return float32 scores as lists of the shortest numbers that stand for them: 0.6, not 0.6000000238418579."""
    return scores.astype(str).astype(np.float64).tolist()


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(Reason.MALFORMED, f"the body is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise Refusal(Reason.MALFORMED, "the body is not a JSON object")
    return content


def text_field(content: dict[str, Any], name: str) -> str | None:
    """Return a text of an object, None if it is not there."""
    value = content.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal(Reason.MALFORMED, f'"{name}" is a text, not {type(value).__name__}')
    return value
