"""The time of a rehearsal, taken apart, and put together again for a job of another size:

    time = programs + set-up(records) + wide part(fitted records) + steps · step + epochs · evaluation(records)
                    + checkpoints · checkpoint + end(records)

`programs`, `step` and `checkpoint` are means, the others lines a + b·n through rehearsals of different numbers n of
records. The fitted records of the wide part are those of all its fits together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from tpsl.party.wide import records_of_all_fits
from tpsl.planning.counts import Counts
from tpsl.planning.rehearsal import Rehearsal
from tpsl.planning.stopwatch import STARTED, STEP, Stamp

_WARM_UP = 3
"""Steps that count as set-up: what the first ones load and compile is loaded and compiled once."""
EVALUATION, CHECKPOINT, FINISHED = "epoch", "checkpoint", "finished"
"""The events that end an evaluation, a checkpoint and a party's part of the job."""
WIDE_PART = "wide part"
"""The event that begins its fit at a feature party; the next one comes after it."""


@dataclass(frozen=True)
class Phases:
    """What one rehearsal took, in seconds."""

    programs: float
    """From the commands to when they are loaded, and from the last result to the end of the last process."""
    set_up: float
    """From then to the first step without the wide part: reading, encoding, the vault, the release, the halves."""
    wide: float
    """From where feature parties begin to fit their wide parts to what they do next."""
    step: float
    evaluation: float
    checkpoint: float
    end: float
    """From the last checkpoint to the result; all of it, where no network is trained."""

    @classmethod
    def of(cls, rehearsal: Rehearsal) -> Phases:
        """Return the phases that a rehearsal shows at the party that knows of every step."""
        stamps = rehearsal.stamps[rehearsal.trainer]
        started = next(stamp.seconds for stamp in stamps if stamp.event == STARTED)
        finished = next(stamp.seconds for stamp in reversed(stamps) if stamp.event == FINISHED)
        programs = rehearsal.seconds - (finished - started)
        stamps = [stamp for stamp in stamps if stamp.event in (STEP, EVALUATION, CHECKPOINT) and stamp.step]
        if not stamps:
            return cls(programs, 0.0, 0.0, 0.0, 0.0, 0.0, finished - started)
        step, wide = _step_seconds(stamps), _wide_seconds(rehearsal)
        warm = [stamp for stamp in stamps if stamp.event == STEP][:_WARM_UP][-1]
        evaluations = [
            after.seconds - before.seconds for before, after in pairwise(stamps) if after.event == EVALUATION
        ]
        return cls(
            programs,
            set_up=max(0.0, warm.seconds - started - warm.step * step - wide),
            wide=wide,
            step=step,
            evaluation=fmean(evaluations) if evaluations else 0.0,
            checkpoint=_checkpoint_seconds(stamps, step),
            end=finished - stamps[-1].seconds,
        )


@dataclass(frozen=True)
class Line:
    """Seconds that grow with a number: `fixed + each · number`, neither below 0."""

    fixed: float
    each: float

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> Line:
        """Return the line through the smallest and the largest number; through 0, if there is one number only."""
        (few, short), (many, long) = min(points), max(points)
        if few == many:
            return cls(0.0, fmean(seconds for _, seconds in points) / many if many else 0.0)
        each = max(0.0, (long - short) / (many - few))
        fixed = long - each * many
        return cls(fixed, each) if fixed >= 0 else cls(0.0, long / many)

    def at(self, number: int) -> float:
        """Return the seconds of this number."""
        return self.fixed + self.each * number


@dataclass(frozen=True)
class TimeModel:
    """What a job takes on this machine."""

    programs: float
    set_up: Line
    wide: Line
    """Of the records that all fits of the wide part read."""
    step: float
    evaluation: Line
    """Of the records that are predicted after an epoch."""
    checkpoint: float
    end: Line

    @classmethod
    def of(cls, rehearsals: Sequence[Rehearsal]) -> TimeModel:
        """Return the model that rehearsals of one job show; steps and checkpoints are those of the longest."""
        found = [(rehearsal.counts, Phases.of(rehearsal)) for rehearsal in rehearsals]
        longest = max(found, key=lambda pair: pair[0].rows)[1]
        return cls(
            fmean(phases.programs for _, phases in found),
            Line.through([(counts.rows, phases.set_up) for counts, phases in found]),
            Line.through([(records_of_all_fits(counts.trained), phases.wide) for counts, phases in found]),
            longest.step,
            Line.through([(counts.evaluated, phases.evaluation) for counts, phases in found]),
            longest.checkpoint,
            Line.through([(counts.rows, phases.end) for counts, phases in found]),
        )

    def seconds(self, counts: Counts) -> dict[str, float]:
        """Return the seconds of each phase of a job."""
        return {
            "programs": self.programs,
            "set-up": self.set_up.at(counts.rows),
            "wide part": self.wide.at(records_of_all_fits(counts.trained)),
            "steps": counts.steps * self.step,
            "evaluations": counts.epochs * self.evaluation.at(counts.evaluated),
            "checkpoints": counts.checkpoints * self.checkpoint,
            "end": self.end.at(counts.rows),
        }


def step_work(rehearsal: Rehearsal) -> dict[str, float]:
    """Return the processor seconds of a step in a process of each party that takes steps."""
    found = {}
    for party, stamps in rehearsal.stamps.items():
        pairs = [(before, after) for before, after in pairwise(stamps) if before.event == after.event == STEP]
        if pairs:
            found[party] = fmean(after.cpu_seconds - before.cpu_seconds for before, after in pairs)
    return found


def _step_seconds(stamps: Sequence[Stamp]) -> float:
    """Return the mean of the steps that follow a step, after the first few; of all steps if there are no such."""
    followed = [(before, after) for before, after in pairwise(stamps) if after.event == STEP]
    plain = [pair for pair in followed if pair[0].event == STEP and pair[1].step > _WARM_UP]
    counted = plain or followed
    return fmean(after.seconds - before.seconds for before, after in counted) if counted else 0.0


def _wide_seconds(rehearsal: Rehearsal) -> float:
    """Return the seconds of the wide part at the party that takes longest; 0 where there is none."""
    fits = (
        after.seconds - before.seconds
        for stamps in rehearsal.stamps.values()
        for before, after in pairwise(stamps)
        if before.event == WIDE_PART
    )
    return max(fits, default=0.0)


def _checkpoint_seconds(stamps: Sequence[Stamp], step: float) -> float:
    """Return the mean of a checkpoint here, and of what the step after one waits for that of the other side."""
    pairs = list(pairwise(stamps))
    own = [after.seconds - before.seconds for before, after in pairs if after.event == CHECKPOINT]
    waits = [after.seconds - before.seconds - step for before, after in pairs if before.event == CHECKPOINT]
    return (fmean(own) if own else 0.0) + max(0.0, fmean(waits) if waits else 0.0)
