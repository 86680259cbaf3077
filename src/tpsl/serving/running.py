"""What a service prepares: its models, the newest and the one before it, and ports, once they are free.

Two models, so that two parties need not switch at the same moment.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tpsl.progress import Notice
from tpsl.serving.refusals import ServiceMetrics

_HELD = 2
_LOOK_AGAIN_SECONDS = 0.02
_LOWEST_PRIORITY = 19
Result = TypeVar("Result")


class Named(Protocol):
    """A model with a name that no other has."""

    @property
    def name(self) -> str:
        """Two models of one name are the same."""


Model = TypeVar("Model", bound=Named)


class Versions(Generic[Model]):
    """The models of a run folder, which is read at the start and whenever `reload` is called.

    The folder may be a link that is moved from run to run. Only the command line says which folder is read.
    """

    def __init__(self, run: Path, load: Callable[[Path], Model], metrics: ServiceMetrics, notice: Notice) -> None:
        self._run, self._load, self._metrics, self._notice = run, load, metrics, notice
        self._loading = asyncio.Lock()
        self.held: tuple[Model, ...] = ()
        self._hold(self._load_now())

    @property
    def newest(self) -> Model:
        """The model that was read last."""
        return self.held[0]

    async def reload(self) -> bool:
        """Read the run folder again while requests are answered; return whether it holds another model than before.

        A folder that cannot be used is an error, and all stays as it was.
        """
        async with self._loading:
            return self._hold(await asyncio.to_thread(self._load_now))

    async def reload_and_tell(self) -> None:
        """Read the run folder again, and say in a notice what came of it."""
        try:
            changed = await self.reload()
        except (ValueError, OSError) as error:
            self._notice(f"the model stays as it was: {error}")
        else:
            self._notice(f"{'now' if changed else 'still'} serving the model {self.newest.name[:16]}")

    def _load_now(self) -> Model:
        return self._load(self._run.resolve())  # all files of one run, even if the link moves meanwhile

    def _hold(self, model: Model) -> bool:
        if self.held and model.name == self.newest.name:
            return False
        self.held = (model, *(held for held in self.held if held.name != model.name))[:_HELD]
        self._metrics.hold_models(held.name for held in self.held)
        return True


class PortTaken(ValueError):
    """A port that another process listens at; the sentence names it."""


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
