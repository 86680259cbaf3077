"""A service gives way while it prepares to take over, and waits for its port."""

from __future__ import annotations

import asyncio
import os

import pytest

from tpsl.serving.refusals import PortTaken
from tpsl.serving.services import when_free
from tpsl.serving.starting import prepared


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_only_what_prepares_a_take_over_gives_way() -> None:
    before = priority()
    assert prepared(priority, take_over=False) == before
    assert prepared(priority, take_over=True) == 19
    assert priority() == before


def test_an_error_of_the_preparation_arrives() -> None:
    def fail() -> None:
        raise ValueError("no such run")

    with pytest.raises(ValueError, match="no such run"):
        prepared(fail, take_over=True)


def test_a_port_is_waited_for_only_by_one_that_takes_over() -> None:
    async def main() -> None:
        taken, notices = [True] * 3, []

        async def open_port() -> int:
            if taken:
                taken.pop()
                raise PortTaken("cannot listen at 127.0.0.1:1")
            return 1

        with pytest.raises(PortTaken):
            await when_free(open_port, False, notices.append)
        assert notices == []
        assert await when_free(open_port, True, notices.append) == 1
        assert notices == ["ready; waiting until the port is free (cannot listen at 127.0.0.1:1)"]

    asyncio.run(main())
