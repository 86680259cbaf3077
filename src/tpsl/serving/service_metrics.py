"""What a scoring service counts, for Prometheus. Nothing here depends on labels, nor on any record's values."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tpsl.serving.refusals import Reason

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_RECORDS = tuple(float(1 << power) for power in range(11))


class ServiceMetrics:
    """The metrics of one service, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
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
        self._refusals.labels(reason.name.lower()).inc()

    def hold_models(self, names: Iterable[str]) -> None:
        """Say which models the service holds, the newest first."""
        self._models.clear()
        for age, name in enumerate(names):
            self._models.labels(name).set(int(age == 0))

    def exposition(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return generate_latest(self._registry)
