"""Requests that wait at the same moment are computed together, in the thread of the event loop.

A batch is what has arrived while the one before was computed, and in the moment for which the first request of a batch
may be made to wait: a batch of three costs little more than a request alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tpsl.serving.refusals import Reason, Refusal, ServiceMetrics

Array = npt.NDArray[Any]
Arrays = Sequence[Array]

MOST_RECORDS = 1024
"""Records of one request, and records that are computed at once."""
MOST_QUEUED_RECORDS = 32 * MOST_RECORDS
"""Records that wait to be computed; a request beyond them is refused."""


class Computes(Protocol):
    """A model: arrays with one row for each record in, such an array out."""

    def compute(self, arrays: Arrays) -> Array:
        """Return the result for each record."""


@dataclass(frozen=True)
class _Work:
    model: Computes
    arrays: Arrays
    result: asyncio.Future[Array]

    @property
    def records(self) -> int:
        return len(self.arrays[0])


class Batcher:
    """Computes what is submitted, in its order, as many records of one model at once as there are, up to a limit."""

    def __init__(self, metrics: ServiceMetrics, gather_seconds: float = 0.0) -> None:
        """Compute at once, or `gather_seconds` after the first request of a batch has come."""
        self._metrics, self._gather_seconds = metrics, gather_seconds
        self._queue: deque[_Work] = deque()
        self._records = 0

    def submit(self, model: Computes, arrays: Arrays, result: asyncio.Future[Array]) -> None:
        """Set `result` to what the model makes of these rows, soon; if it was cancelled by then, compute nothing."""
        work = _Work(model, arrays, result)
        if self._records + work.records > MOST_QUEUED_RECORDS:
            raise Refusal(Reason.BUSY, f"{self._records:,} records are waiting to be computed; ask again later")
        if not self._queue:
            asyncio.get_running_loop().call_later(self._gather_seconds, self._compute)
        self._queue.append(work)
        self._records += work.records

    def _compute(self) -> None:
        """Compute the works of the first one's model, until another model or the limit comes."""
        batch: list[_Work] = []
        total = 0
        while self._queue:
            work = self._queue[0]
            if batch and (work.model is not batch[0].model or total + work.records > MOST_RECORDS):
                # Not at once: what has arrived in the meantime is read first.
                asyncio.get_running_loop().call_soon(self._compute)
                break
            self._queue.popleft()
            self._records -= work.records
            if not work.result.done():
                batch.append(work)
                total += work.records
        if not batch:
            return
        self._metrics.batch_records.observe(total)
        try:
            columns = zip(*(work.arrays for work in batch), strict=True)
            joined = batch[0].arrays if len(batch) == 1 else [np.concatenate(column) for column in columns]
            found = batch[0].model.compute(joined)
        except Exception as error:  # a user's own network may raise anything; its requests fail, the service does not
            for work in batch:
                work.result.set_exception(error)
            return
        ends = np.cumsum([work.records for work in batch])
        for work, part in zip(batch, np.split(found, ends[:-1]), strict=True):
            work.result.set_result(part)
