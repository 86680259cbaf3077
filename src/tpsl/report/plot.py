"""A chart drawn by Matplotlib, for a notebook or a paper."""

from __future__ import annotations

import math
from typing import Any

from tpsl.report.chart import Chart, Series

COLOURS = {
    "utility": "#0b6b6b",
    "attack": "#b2410c",
    "attack-2": "#a81e4b",
    "attack-3": "#8f5a00",
    "limit": "#5f646c",
    "behind": "#b9b6ad",
    "run-1": "#2f5fb0",
    "run-2": "#7a3f98",
    "run-3": "#6e6a12",
    "run-4": "#a0358a",
    "run-5": "#1c7196",
    "run-6": "#6b5b3e",
}
"""The colours of the roles: those of the page in its light theme."""
_MARKERS = ("o", "s", "D", "^", "v", "P")
_LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (9, 3)))


def draw(panel: Any, chart: Chart) -> None:
    """Draw a chart on Matplotlib's axes."""
    for rule in chart.rules:
        across = panel.axvline if rule.upright else panel.axhline
        across(rule.value, color=COLOURS[rule.role], linestyle="--", linewidth=0.8, label=as_it_is(rule.name))
    for one in chart.series:
        _draw(panel, one, by_row=bool(chart.y.rows))
    if chart.x.logarithmic:
        panel.set_xscale("log")
    if chart.x.at:
        panel.set_xticks(chart.x.at, [f"{tick:.3g}" for tick in chart.x.at])
        panel.minorticks_off()
    if chart.y.rows:
        panel.set_yticks(range(len(chart.y.rows)), [as_it_is(name) for name in chart.y.rows])
        panel.invert_yaxis()
    if chart.x.whole:
        panel.locator_params(axis="x", integer=True)
    if chart.square:
        panel.set_aspect("equal")
    panel.set(xlabel=chart.x.title, ylabel=chart.y.title)


def _draw(panel: Any, one: Series, *, by_row: bool) -> None:
    x, y, low, high = (
        [math.nan if value is None else value for value in places] for places in (one.x, one.y, one.low, one.high)
    )
    colour, label = COLOURS[one.role], as_it_is(one.name) if one.in_legend else "_hidden"
    marker = _MARKERS[one.number % len(_MARKERS)] if "points" in one.marks else "|" if "ticks" in one.marks else None
    if "area" in one.marks:
        panel.fill_between(x, y, color=colour, alpha=0.15, linewidth=0)
    if "line" in one.marks:
        style = _LINES[one.number % len(_LINES)]
        panel.plot(x, y, color=colour, linestyle=style, marker=marker, label=label)
        marker, label = None, "_hidden"
    if low or marker:
        centre = x if by_row else y
        below = [value - end for value, end in zip(centre, low, strict=True)] if low else None
        above = [end - value for value, end in zip(centre, high, strict=True)] if low else None
        bars = {"xerr" if by_row else "yerr": [below, above] if low else None}
        panel.errorbar(x, y, color=colour, linestyle="none", elinewidth=0.8, marker=marker, label=label, **bars)


def as_it_is(text: str) -> str:
    """Return a text that Matplotlib shows as it is: no mathematics, and no label that it hides."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")
