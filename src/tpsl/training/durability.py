"""How much of a run a crash may cost: what was done since its last checkpoint, or all of its beginning."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tpsl.training.checkpoint import saved_steps
from tpsl.training.run_folder import RunFolder


class Durability:
    """Says when a run's checkpoints are written; all roles of a process share one.

    With `may_be_lost` the run is provisional for that many seconds: it has no checkpoint and nothing of it is durable,
    so that a run that is shorter never waits for the disk but at its end. A run that was interrupted in that time is
    trained again from the beginning, to the same weights. A run that goes on from a checkpoint is never provisional. It
    is for runs whose vault is elsewhere: a release is durable before anybody sees it.
    """

    def __init__(self, may_be_lost: float = 0.0) -> None:
        self._may_be_lost = may_be_lost
        self._begun, self._last_step, self._is_due = time.monotonic(), 0, True
        self._settle: Callable[[], None] = _nothing

    @contextmanager
    def during(self, run: RunFolder) -> Iterator[None]:
        """Within this block the run is trained; what is in its folder afterwards is durable."""
        if any(saved_steps(folder) for folder in run.path.glob("*/checkpoints")):
            self._may_be_lost = 0.0
        if not self._may_be_lost:
            yield
            return
        with run.provisional() as self._settle:
            self._begun = time.monotonic()
            yield

    def is_due(self, step: int) -> bool:
        """Whether the state after `step` steps is kept: every role of the process is told the same."""
        if step != self._last_step:
            self._last_step, self._is_due = step, time.monotonic() - self._begun >= self._may_be_lost
            if self._is_due:
                self._settle()
        return self._is_due


def _nothing() -> None:
    """Do nothing."""
