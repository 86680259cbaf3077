"""How a service runs: it opens its ports, reads its model again on SIGHUP, and ends in order on SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tpsl.net.peers import LABEL_PARTY
from tpsl.progress import Notice
from tpsl.serving.versions import Versions
from tpsl.training.local import Local, LocalError, certificates_of, party_of

GRACE_SECONDS = 10.0
"""How long requests that are under way may take once a service is told to end."""

_LOOK_AGAIN_SECONDS = 0.02
_LOWEST_PRIORITY = 19
Result = TypeVar("Result")


class PortTaken(ValueError):
    """A port that another process listens at; the sentence names it."""


class Service(Protocol):
    """What `run` needs of a service."""

    async def open(self) -> None:
        """Open the ports."""

    async def close(self) -> None:
        """Take no more requests and answer those under way."""

    @property
    def versions(self) -> Versions[Any]:
        """The models that it holds."""


def run(service: Service, when_open: Callable[[], None]) -> signal.Signals:
    """Serve until the process is told to end; return the signal that said so."""
    return asyncio.run(_run(service, when_open))


async def _run(service: Service, when_open: Callable[[], None]) -> signal.Signals:
    loop = asyncio.get_running_loop()
    told: asyncio.Future[signal.Signals] = loop.create_future()
    reloads: set[asyncio.Task[None]] = set()

    def end(number: signal.Signals) -> None:
        if not told.done():
            told.set_result(number)

    def reload() -> None:
        task = loop.create_task(service.versions.reload_and_tell())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    opening = loop.create_task(service.open())
    either: set[asyncio.Future[Any]] = {opening, told}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():
        opening.cancel()
        return await told
    opening.result()
    loop.add_signal_handler(signal.SIGHUP, reload)
    when_open()
    ended_by = await told
    await service.close()
    return ended_by


def prepared(prepare: Callable[[], Result], take_over: bool) -> Result:
    """Return what `prepare` returns; with `take_over`, from a thread that gives way to everything else on the machine.

    To import PyTorch and to read a model takes seconds of a processor that another process needs to serve. What is
    there afterwards stays: the garbage collector, which stops everything else, need not look at it between requests.
    """
    priority = _LOWEST_PRIORITY if take_over else os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1, initializer=os.setpriority, initargs=(os.PRIO_PROCESS, 0, priority)) as thread:
        result = thread.submit(prepare).result()
        thread.submit(gc.collect).result()
    gc.freeze()
    return result


async def when_free(open_port: Callable[[], Awaitable[Result]], take_over: bool, notice: Notice) -> Result:
    """Open a port; with `take_over`, as soon as the process that listens there now has closed it.

    A service is replaced without a gap so: the new process reads its model, waits here, and then the old one is ended.
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


def service_of(run: Path, local: Local, notice: Notice, *, take_over: bool, local_head: bool) -> Any:
    """Return the service of the party that this side is, which its address says."""
    import torch

    from tpsl.model.trained import TrainedModel
    from tpsl.serving.feature_service import FeatureOptions, FeatureService
    from tpsl.serving.label_service import LabelOptions, LabelService

    torch.set_num_threads(local.threads or 1)  # batches are small: threads would wait for each other
    secure, common = not local.insecure_loopback, (local.http, local.deadline, take_over)
    if local.connect is not None:
        party = party_of(TrainedModel.open(run).run.job(), local, local.party)
        channel = certificates_of(local, party).channel() if secure else None
        return FeatureService(FeatureOptions(run, party, local.connect, channel, *common), notice)
    if local.listen is None:
        raise LocalError("a label party needs --listen HOST:PORT, a feature party --connect HOST:PORT")
    server = certificates_of(local, LABEL_PARTY).server() if secure else None
    return LabelService(LabelOptions(run, local.listen, server, *common, local_head, local.returns), notice)
