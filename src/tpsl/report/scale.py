"""From AUCs to places on an axis, with round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_TICKS_PER_UNIT = (1000, 500, 200, 100, 50, 20, 10, 5, 2)
"""Steps of 0.001, 0.002, 0.005, … 0.5: round numbers to a reader."""


@dataclass(frozen=True)
class Scale:
    """An axis between its first and last tick."""

    ticks: tuple[float, ...]
    decimals: int

    def share(self, value: float) -> float:
        """Return where the value lies on the axis: 0 at its start, 1 at its end."""
        return (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])

    def label(self, tick: float) -> str:
        """Return a tick as text, all ticks with the same number of decimals."""
        return f"{tick:.{self.decimals}f}"


def scale_for(areas: Iterable[float], most_ticks: int = 6) -> Scale:
    """Return the finest axis that holds these AUCs with at most so many (3 or more) ticks, all at round numbers.

    NaN counts for nothing. AUCs lie in [0, 1], and so does the axis.
    """
    known = [area for area in areas if not math.isnan(area)]
    first, last, per_unit = next(
        (first, last, per_unit)
        for per_unit in _TICKS_PER_UNIT
        for first, last in [_around(min(known), max(known), per_unit)]
        if last - first < most_ticks
    )
    decimals = math.ceil(math.log10(per_unit))
    return Scale(tuple(round(tick / per_unit, decimals) for tick in range(first, last + 1)), decimals)


def _around(low: float, high: float, per_unit: int) -> tuple[int, int]:
    """Return the last tick at or below `low` and the first at or above `high`, two different ones."""
    # The small number keeps a value that is a tick but for float rounding from opening another interval.
    first, last = math.floor(low * per_unit + 1e-9), math.ceil(high * per_unit - 1e-9)
    return (first, last) if first < last else (max(first - 1, 0), min(last + 1, per_unit))
