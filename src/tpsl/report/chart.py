"""What a chart shows, as plain data: one specification for the page, a notebook and a paper.

`svg` and `plot` draw it. Colours are theirs: a series has a role (`utility`, `attack`, `limit`, `run-1` …).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tpsl.report.words import significant

Marks = Literal["line", "points", "area", "ticks"]
Place = float | None


@dataclass(frozen=True)
class Series:
    """Points that belong together; a place of None breaks a line. `low` and `high` are the ends of intervals."""

    name: str
    x: Sequence[Place]
    y: Sequence[Place]
    marks: tuple[Marks, ...]
    role: str
    low: Sequence[Place] = ()
    high: Sequence[Place] = ()
    number: int = 0
    """Decides the symbol of the points and the dashes of the line."""
    texts: Sequence[str] = ()
    """What a pointer on each point shows."""
    in_legend: bool = True


@dataclass(frozen=True)
class Axis:
    """An axis; with `rows` it has a name for each of 0, 1, 2 … from the top, and intervals lie along the other one."""

    title: str = ""
    low: float | None = None
    high: float | None = None
    logarithmic: bool = False
    percent: bool = False
    whole: bool = False
    at: Sequence[float] = ()
    rows: Sequence[str] = ()


@dataclass(frozen=True)
class Rule:
    """A line across the whole chart: at `value` of the x axis where `upright`, else of the y axis."""

    name: str
    value: float
    role: str
    upright: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what it shows, the number by which it is sorted, and what stands below in small print."""

    text: str
    value: float | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A chart with its summary and the table of its numbers; without series the summary says it all."""

    name: str
    title: str
    summary: str
    series: Sequence[Series] = ()
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    rules: Sequence[Rule] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    square: bool = False


@dataclass(frozen=True)
class Scale:
    """From numbers to places: `low` of the axis stands at `start`, `high` at `end`."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, axis: Axis, values: Sequence[Place], start: float, end: float) -> Scale:
        """Return the scale of an axis that has room for these values."""
        if axis.rows:
            return cls(axis, -0.6, len(axis.rows) - 0.4, start, end)
        known = [value for value in values if value is not None]
        low = min(known) if axis.low is None else axis.low
        high = max(known) if axis.high is None else axis.high
        if axis.logarithmic:
            return cls(axis, low / 1.3, high * 1.3, start, end)
        # Numbers that differ by rounding alone have an axis, too.
        margin = 0.05 * (high - low) if high - low > 1e-9 else 0.05
        return cls(axis, low - margin * (axis.low is None), high + margin * (axis.high is None), start, end)

    def __call__(self, value: float) -> float:
        """Return where a number stands."""
        low, high = self.low, self.high
        if self.axis.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the numbers of ticks with their texts."""
        values, digits = list(self.axis.at), None
        if not values and self.axis.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        elif not values:
            step = self._step((self.high - self.low) / 5)
            first = math.ceil(self.low / step - 1e-9)
            values = [number * step for number in range(first, first + 12)]
            digits = max(0, -math.floor(math.log10(step)))
        kept = [value for value in values if self.low - 1e-9 <= value <= self.high + 1e-9]
        return [(value, self._text(value, digits)) for value in kept]

    def _text(self, value: float, digits: int | None) -> str:
        if self.axis.percent:
            return f"{100 * value:.3g} %"
        return significant(value) if digits is None else f"{value:,.{digits}f}"

    def _step(self, least: float) -> float:
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
        return max(1.0, step) if self.axis.whole else step
