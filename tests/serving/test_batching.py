"""What waits at the same moment is computed together, and each gets its own part."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tpsl.serving import batching
from tpsl.serving.batching import Batcher
from tpsl.serving.refusals import Reason, Refusal, ServiceMetrics


class Sums:
    """Adds its arrays, and notes how many rows it was given."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def compute(self, arrays: Any) -> Any:
        self.sizes.append(len(arrays[0]))
        return arrays[0] + arrays[1]


class Fails:
    def compute(self, arrays: Any) -> Any:
        raise ZeroDivisionError


def rows(start: int, count: int) -> tuple[Any, Any]:
    return np.arange(start, start + count), np.full(count, 100)


def submitted(batcher: Batcher, model: Any, arrays: Any) -> asyncio.Future[Any]:
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    batcher.submit(model, arrays, result)
    return result


def test_requests_of_one_moment_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MOST_RECORDS", 10)

    async def main() -> None:
        batcher, model, other = Batcher(ServiceMetrics()), Sums(), Sums()
        works = [submitted(batcher, model, rows(start, 4)) for start in (0, 4, 8)]
        works.append(submitted(batcher, other, rows(50, 2)))
        works.append(submitted(batcher, model, rows(12, 4)))
        found = await asyncio.gather(*works)
        assert [part.tolist() for part in found[:3]] == [
            [100, 101, 102, 103],
            [104, 105, 106, 107],
            [108, 109, 110, 111],
        ]
        assert found[3].tolist() == [150, 151]
        # Ten at most, in order, and never two models at once.
        assert (model.sizes, other.sizes) == ([8, 4, 4], [2])

    asyncio.run(main())


def test_what_nobody_waits_for_is_not_computed() -> None:
    async def main() -> None:
        batcher, model = Batcher(ServiceMetrics()), Sums()
        left, waited_for = submitted(batcher, model, rows(0, 3)), submitted(batcher, model, rows(3, 2))
        left.cancel()
        assert (await waited_for).tolist() == [103, 104]
        assert model.sizes == [2]

    asyncio.run(main())


def test_a_model_that_fails_fails_its_own_requests_only() -> None:
    async def main() -> None:
        batcher = Batcher(ServiceMetrics())
        failing, sound = submitted(batcher, Fails(), rows(0, 1)), submitted(batcher, Sums(), rows(0, 1))
        with pytest.raises(ZeroDivisionError):
            await failing
        assert (await sound).tolist() == [100]

    asyncio.run(main())


def test_a_full_queue_refuses_and_is_free_again_when_it_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MOST_QUEUED_RECORDS", 5)

    async def main() -> None:
        batcher, model = Batcher(ServiceMetrics()), Sums()
        first = submitted(batcher, model, rows(0, 4))
        with pytest.raises(Refusal, match="4 records are waiting") as refused:
            submitted(batcher, model, rows(0, 2))
        assert refused.value.reason == Reason.BUSY
        await first
        assert len(await submitted(batcher, model, rows(0, 5))) == 5

    asyncio.run(main())
