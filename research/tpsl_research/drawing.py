"""How figures look, and the one way in which test AUC is drawn against ε: for the paper, the frontier and any runs.

Figures are small and plain, with embedded fonts, and of the same bytes for the same numbers.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, get_args

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpsl.files import write_atomically
from tpsl.report.chart import Chart, Series

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)

INK, FAINT = "#1c1f24", "#8b8f96"
_COLOURS = ("#0b6b6b", "#b45309", "#2f5fb0", "#8a3a79", "#5f6f16", "#b0304f", "#6b5b3e", "#585d66")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "h")
_LINES = ("-", "--", ":", "-.")
_PANEL = (3.4, 2.6)  # inches: one column of a paper
_MOST_TICKS, _TICKS_APART = 8, 1.3
_LONGEST_LEGEND = 40
_STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "errorbar.capsize": 1.5,
    "legend.frameon": False,
    # Journals refuse the fonts of type 3 that are matplotlib's default.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "tpsl",
}
_SAME_BYTES: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}

P = ParamSpec("P")
Drawn = TypeVar("Drawn")


def styled(draw: Callable[P, Drawn]) -> Callable[P, Drawn]:
    """Let a function draw in our style, and leave that of the process as it is."""

    @functools.wraps(draw)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> Drawn:
        with rc_context(_STYLE):
            return draw(*args, **kwargs)

    return drawing


@dataclass(frozen=True)
class Point:
    """A test AUC with its interval, at an ε or at the AUC of an attack; an end of NaN is not drawn."""

    x: float
    auc: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """Points that belong together."""

    number: int
    """Decides colour and marker, so that a line looks the same in every panel."""
    name: str
    points: Sequence[Point]
    joined: Sequence[tuple[float, float]] | None = None
    """What the line goes through, if not through the points."""


@dataclass(frozen=True)
class Level:
    """A test AUC that belongs to no ε of the axis: a horizontal line."""

    name: str
    auc: float
    line: str = "--"
    number: int | None = None
    """The line whose colour it has; None: ink."""


def panels(count: int, size: tuple[float, float] = _PANEL, *, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels, two in a row."""
    columns = min(count, 2)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    grid: Any = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    for unused in grid.flat[count:]:
        unused.remove()
    return figure, list(grid.flat[:count])


def draw_auc(panel: Axes, lines: Iterable[Line], levels: Iterable[Level], against: str, title: str) -> None:
    """Draw test AUC, with its intervals, against ε (a logarithmic axis with a tick for each level) or anything else."""
    for level in levels:
        colour = INK if level.number is None else style_of(level.number)["color"]
        panel.axhline(level.auc, color=colour, linestyle=level.line, linewidth=0.8, label=as_it_is(level.name))
    places: set[float] = set()
    for line in lines:
        x, y = [point.x for point in line.points], [point.auc for point in line.points]
        below, above = [p.auc - p.low for p in line.points], [p.high - p.auc for p in line.points]
        style = style_of(line.number)
        bars = {**style, "linestyle": "none", "elinewidth": 0.8, "label": as_it_is(line.name)}
        panel.errorbar(x, y, yerr=[below, above], **bars)
        panel.plot(*zip(*(line.joined or zip(x, y, strict=True)), strict=True), **{**style, "marker": None})
        places.update(x)
    if against == "ε":
        _logarithmic(panel, sorted(places))
    finish(panel, against, "test AUC", title)


def _logarithmic(panel: Axes, places: Sequence[float]) -> None:
    panel.set_xscale("log")
    ticks: list[float] = []
    for place in places:
        if not ticks or place > _TICKS_APART * ticks[-1]:  # closer ones would run into each other
            ticks.append(place)
    if len(ticks) <= _MOST_TICKS:
        panel.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        panel.minorticks_off()


def finish(panel: Axes, across: str, up: str, title: str) -> None:
    """Name the axes and the panel, and add a legend unless it would be too long to say anything."""
    panel.set(xlabel=across, ylabel=up)
    panel.set_title(as_it_is(title), loc="left")
    if len(panel.get_lines()) <= _LONGEST_LEGEND:
        panel.legend(labelspacing=0.2)


def style_of(number: int) -> dict[str, Any]:
    """Return colour, marker and pattern of a line; no two of the first 32 look the same."""
    turn, place = divmod(number, len(_COLOURS))
    return {"color": _COLOURS[place], "marker": _MARKERS[place], "linestyle": _LINES[turn % len(_LINES)]}


@styled
def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the path's ending names, for its owner only."""
    content, kind = io.BytesIO(), path.suffix.removeprefix(".")
    figure.savefig(content, format=kind, dpi=300, metadata=_SAME_BYTES[kind])
    write_atomically(path, content.getvalue())


# ---- the charts of a report

ROLES = {
    "utility": "#0b6b6b",
    "attack": "#b2410c",
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


def draw(panel: Any, chart: Chart) -> None:
    """Draw a chart on Matplotlib's axes."""
    for rule in chart.rules:
        across = panel.axvline if rule.upright else panel.axhline
        across(rule.value, color=ROLES[rule.role], linestyle="--", linewidth=0.8, label=as_it_is(rule.name))
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
    colour, label = ROLES[one.role], as_it_is(one.name) if one.in_legend else "_hidden"
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
