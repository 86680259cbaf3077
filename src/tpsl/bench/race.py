"""Contenders side by side: they take turns on the same processors, round after round, in one run.

A figure is the median over the rounds of the ratio to the baseline of the same round, because a machine's speed drifts
more between rounds than within one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median, quantiles

from tpsl.bench.contender import Contender, ContenderFailed, RunningContender, Turn, started
from tpsl.bench.shape import Shape
from tpsl.progress import Progress, no_progress


@dataclass(frozen=True)
class Pace:
    """How long a race is: at least two rounds, in each of which a contender does some steps."""

    rounds: int = 9
    turn_seconds: float = 1.0
    """About how long a turn lasts: one step at least."""
    most_records: int = 1 << 16
    """The most records of a turn, if a step has no more."""
    warm_up: int = 3
    """Steps of each contender before the first round."""

    def most_steps(self, batch: int) -> int:
        """Return the most steps of a turn."""
        return max(1, self.most_records // batch)

    def steps(self, batch: int) -> int:
        """Return the most steps that a contender does, with one before it is measured."""
        return 1 + self.warm_up + self.rounds * self.most_steps(batch)

    def steps_of_a_turn(self, seconds: float, batch: int) -> int:
        """Return how many steps of so many seconds make up a turn."""
        return max(1, min(self.most_steps(batch), round(self.turn_seconds / seconds)))


@dataclass(frozen=True)
class Standing:
    """What one contender reached, or why it did not."""

    name: str
    how: str
    samples_per_second: float | None = None
    ratio: float | None = None
    """Times as many samples per second as the baseline, the race's first contender: the median over the rounds."""
    quartiles: tuple[float, float] | None = None
    cpu_ratio: float | None = None
    """Times as many samples as the baseline in a second of CPU time, which other programs disturb less."""
    reason: str | None = None


def race(contenders: Sequence[Contender], shape: Shape, pace: Pace, progress: Progress = no_progress) -> list[Standing]:
    """Let contenders train a shape in turns; one that fails says why, but the first, the baseline, must not."""
    shape = replace(shape, steps=pace.steps(shape.batch))
    with tempfile.TemporaryDirectory(prefix="tpsl-bench-") as name, ExitStack() as stack:
        track = _Track(contenders, Path(name), pace, shape)
        for number, contender in enumerate(contenders):
            progress(number, len(contenders) + pace.rounds, f"starting {contender.name}")
            track.start(contender, stack)
        for number in range(pace.rounds):
            progress(len(contenders) + number, len(contenders) + pace.rounds, f"round {number + 1}")
            track.round(backwards=bool(number % 2))
        return [track.standing(contender) for contender in contenders]


class _Track:
    """The contenders of a race that are still in it, and their times."""

    def __init__(self, contenders: Sequence[Contender], folder: Path, pace: Pace, shape: Shape) -> None:
        self._task, self._folder, self._pace, self._batch = folder / "task", folder, pace, shape.batch
        self._task.mkdir()
        shape.write(self._task)
        self._baseline = contenders[0].name
        self._running: dict[str, tuple[RunningContender, int]] = {}
        self._turns: dict[str, list[Turn]] = {}
        self._failures: dict[str, str] = {}

    def start(self, contender: Contender, stack: ExitStack) -> None:
        """Start a contender and warm it up."""
        try:
            folder = self._folder / f"contender-{len(self._turns) + len(self._failures)}"
            running = stack.enter_context(started(contender, self._task, folder))
            seconds = running.turn(self._pace.warm_up).seconds
        except ContenderFailed as error:
            self._fails(contender.name, error)
            return
        self._running[contender.name] = running, self._pace.steps_of_a_turn(seconds, self._batch)
        self._turns[contender.name] = []

    def round(self, *, backwards: bool) -> None:
        """Give each contender a turn; every second round backwards, so that none always follows the same one."""
        for name, (running, steps) in list(self._running.items())[:: -1 if backwards else 1]:
            try:
                self._turns[name].append(running.turn(steps))
            except ContenderFailed as error:
                self._fails(name, error)

    def standing(self, contender: Contender) -> Standing:
        """Return what a contender has reached."""
        if contender.name in self._failures:
            return Standing(contender.name, contender.how, reason=self._failures[contender.name])
        own, baseline = self._turns[contender.name], self._turns[self._baseline]
        ratios = [theirs.seconds / turn.seconds for theirs, turn in zip(baseline, own, strict=True)]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        samples_per_second = self._batch / median(turn.seconds for turn in own)
        cpu_ratio = median(turn.cpu_seconds for turn in baseline) / (median(turn.cpu_seconds for turn in own) or inf)
        return Standing(
            contender.name, contender.how, samples_per_second, median(ratios), (low, high), cpu_ratio or None
        )

    def _fails(self, name: str, error: ContenderFailed) -> None:
        if name == self._baseline:
            raise ContenderFailed(f"{name}, the baseline, has failed: {error}") from error
        self._running.pop(name, None)
        self._failures[name] = str(error)
