"""Contenders side by side: they take turns on the same processors, round after round, in one run.

A figure is the median over the rounds of the ratio to the baseline of the same round, because a machine's speed drifts
more between rounds than within one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from tpsl.bench.contender import Contender, ContenderFailed, RunningContender, started
from tpsl.bench.shape import Shape
from tpsl.progress import Progress, no_progress


@dataclass(frozen=True)
class Pace:
    """How long a race is: at least two rounds, in each of which a contender does some steps."""

    rounds: int = 9
    turn_seconds: float = 1.0
    """About how long a turn lasts; within `most_steps`, one step at least."""
    most_steps: int = 8
    warm_up: int = 3
    """Steps of each contender before the first round."""

    @property
    def steps(self) -> int:
        """The most steps that a contender does, with one before it is measured."""
        return 1 + self.warm_up + self.rounds * self.most_steps

    def steps_of_a_turn(self, seconds: float) -> int:
        """Return how many steps of so many seconds make up a turn."""
        return max(1, min(self.most_steps, round(self.turn_seconds / seconds)))


@dataclass(frozen=True)
class Standing:
    """What one contender reached, or why it did not."""

    name: str
    how: str
    samples_per_second: float | None = None
    ratio: float | None = None
    """Times as many samples per second as the baseline, the race's first contender: the median over the rounds."""
    quartiles: tuple[float, float] | None = None
    reason: str | None = None


def race(contenders: Sequence[Contender], shape: Shape, pace: Pace, progress: Progress = no_progress) -> list[Standing]:
    """Let contenders train a shape in turns; one that fails says why, but the first, the baseline, must not."""
    with tempfile.TemporaryDirectory(prefix="tpsl-bench-") as name, ExitStack() as stack:
        track = _Track(contenders, Path(name), pace)
        shape.write(track.task)
        for number, contender in enumerate(contenders):
            progress(number, len(contenders) + pace.rounds, f"starting {contender.name}")
            track.start(contender, stack)
        for number in range(pace.rounds):
            progress(len(contenders) + number, len(contenders) + pace.rounds, f"round {number + 1}")
            track.round(backwards=bool(number % 2))
        return [track.standing(contender, shape.batch) for contender in contenders]


class _Track:
    """The contenders of a race that are still in it, and their times."""

    def __init__(self, contenders: Sequence[Contender], folder: Path, pace: Pace) -> None:
        self.task, self._folder, self._pace = folder / "task", folder, pace
        self.task.mkdir()
        self._baseline = contenders[0].name
        self._running: dict[str, tuple[RunningContender, int]] = {}
        self._seconds: dict[str, list[float]] = {}
        self._failures: dict[str, str] = {}

    def start(self, contender: Contender, stack: ExitStack) -> None:
        """Start a contender and warm it up."""
        try:
            folder = self._folder / f"contender-{len(self._seconds) + len(self._failures)}"
            running = stack.enter_context(started(contender, self.task, folder))
            seconds = running.seconds_for(self._pace.warm_up)
        except ContenderFailed as error:
            self._fails(contender.name, error)
            return
        self._running[contender.name] = running, self._pace.steps_of_a_turn(seconds)
        self._seconds[contender.name] = []

    def round(self, *, backwards: bool) -> None:
        """Give each contender a turn; every second round backwards, so that none always follows the same one."""
        for name, (running, steps) in list(self._running.items())[:: -1 if backwards else 1]:
            try:
                self._seconds[name].append(running.seconds_for(steps))
            except ContenderFailed as error:
                self._fails(name, error)

    def standing(self, contender: Contender, batch: int) -> Standing:
        """Return what a contender has reached."""
        if contender.name in self._failures:
            return Standing(contender.name, contender.how, reason=self._failures[contender.name])
        own, baseline = self._seconds[contender.name], self._seconds[self._baseline]
        ratios = [theirs / seconds for theirs, seconds in zip(baseline, own, strict=True)]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        return Standing(contender.name, contender.how, batch / median(own), median(ratios), (low, high))

    def _fails(self, name: str, error: ContenderFailed) -> None:
        if name == self._baseline:
            raise error
        self._running.pop(name, None)
        self._failures[name] = str(error)
