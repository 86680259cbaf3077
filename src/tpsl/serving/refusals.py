"""Why requests are refused, each kind with its status over HTTP and over gRPC, and what a service counts."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from http import HTTPStatus

from grpc import StatusCode
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_RECORDS = tuple(float(1 << power) for power in range(11))


class Reason(Enum):
    """A kind of refusal. Metrics and answers call it by the name here, in lower case."""

    MALFORMED = HTTPStatus.BAD_REQUEST, StatusCode.INVALID_ARGUMENT
    UNAUTHORIZED = HTTPStatus.UNAUTHORIZED, StatusCode.UNAUTHENTICATED
    FORBIDDEN = HTTPStatus.FORBIDDEN, StatusCode.PERMISSION_DENIED
    NOT_FOUND = HTTPStatus.NOT_FOUND, StatusCode.NOT_FOUND
    WRONG_METHOD = HTTPStatus.METHOD_NOT_ALLOWED, StatusCode.UNIMPLEMENTED
    KEY_IN_USE = HTTPStatus.CONFLICT, StatusCode.ALREADY_EXISTS
    TOO_LARGE = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, StatusCode.OUT_OF_RANGE
    UNKNOWN_VERSION = HTTPStatus.PRECONDITION_FAILED, StatusCode.FAILED_PRECONDITION
    BAD_PEER = HTTPStatus.BAD_GATEWAY, StatusCode.INTERNAL
    DEFECT = HTTPStatus.INTERNAL_SERVER_ERROR, StatusCode.INTERNAL
    BUSY = HTTPStatus.SERVICE_UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED
    UNREACHABLE = HTTPStatus.SERVICE_UNAVAILABLE, StatusCode.UNAVAILABLE
    TOO_LATE = HTTPStatus.GATEWAY_TIMEOUT, StatusCode.ABORTED

    @property
    def http(self) -> HTTPStatus:
        """The status over HTTP."""
        return self.value[0]

    @property
    def grpc(self) -> StatusCode:
        """The status over gRPC."""
        return self.value[1]

    @property
    def code(self) -> str:
        """The name for programs."""
        return self.name.lower()


class Refusal(Exception):
    """A request that is refused; the message is the sentence that the caller reads."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class PortTaken(ValueError):
    """A port that another process listens at; the sentence names it."""


class ServiceMetrics:
    """What one service counts, for Prometheus. Nothing here depends on labels, nor on the values of any record."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.seconds = Histogram(
            "tpsl_request_seconds", "From request to answer.", ["call"], buckets=_SECONDS, registry=registry
        )
        self.batch_records = Histogram(
            "tpsl_batch_records", "Records computed at once.", buckets=_RECORDS, registry=registry
        )
        self.waiting = Gauge("tpsl_waiting_requests", "Requests that are being answered.", registry=registry)
        self._refusals = Counter("tpsl_refusals", "Requests refused.", ["reason"], registry=registry)
        self._models = Gauge(
            "tpsl_model", "1 for the newest model, 0 for the one before.", ["model"], registry=registry
        )

    def refused(self, reason: Reason) -> None:
        """Count a refusal."""
        self._refusals.labels(reason.code).inc()

    def hold_models(self, names: Iterable[str]) -> None:
        """Say which models the service holds, the newest first."""
        self._models.clear()
        for age, name in enumerate(names):
            self._models.labels(name).set(int(age == 0))
