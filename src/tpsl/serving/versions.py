"""The models that a service holds: the newest and the one before it, so that two parties need not switch together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tpsl.progress import Notice
from tpsl.serving.service_metrics import ServiceMetrics


class Named(Protocol):
    """A model with a name that no other has."""

    @property
    def name(self) -> str:
        """Two models of one name are the same."""


Model = TypeVar("Model", bound=Named)
_HELD = 2


class Versions(Generic[Model]):
    """Reads the model of a run folder, at the start and whenever it is told to.

    The folder may be a link that is moved from run to run. Where it leads nobody but the command line says.
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
        """Read the run folder again, beside all requests; whether it holds another model than before.

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
        before = tuple(held for held in self.held if held.name != model.name)
        self.held = (model, *before)[:_HELD]
        self._metrics.hold_models(held.name for held in self.held)
        return True
