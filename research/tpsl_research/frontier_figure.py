"""The frontier as a figure: test AUC against ε, private heads on the left, local heads on the right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tpsl_research.drawing import Level, Line, Point, draw_auc, panels, save, styled
from tpsl_research.frontier_cells import BASELINES, NETWORK, Row
from tpsl_research.frontier_report import (
    HEADLINE,
    HEADLINE_LOCAL,
    LOCAL,
    OURS,
    OURS_WITHOUT_NOISE,
    REFERENCE,
    Series,
    auc,
    epsilons_of,
)

_PRIVATE = (*(Series(name, "best") for name in BASELINES), *OURS[1:])
_NUMBERS = {series.algorithm: number for number, series in enumerate(_PRIVATE)}
"""The look of a line: the same in both panels."""


@styled
def frontier_figure(rows: Sequence[Row], data: str, paths: Sequence[Path]) -> None:
    """Draw the frontier and save it to every path (PNG, SVG or PDF by ending).

    Bars are 95 % t-intervals over seeds. Gaussian noise stands at the ε of the Laplace noise that lets the
    shortest-distance attack through as often; its own ε is larger. The dotted line is what is left at ε = 0, where the
    feature party gets nothing back.
    """
    figure, axes = panels(2, sharey=True)
    heights: list[float] = []
    for panel, head, drawn in zip(axes, ("private", "local"), (_PRIVATE, LOCAL), strict=True):
        lines, levels = _lines(rows, drawn), _levels(rows, head)
        draw_auc(panel, lines, levels, "ε", f"{data}, {head} head")
        heights += [point.auc for line in lines for point in line.points] + [level.auc for level in levels]
    if heights:  # Intervals of two seeds are wider than the picture; the lines decide what it shows.
        axes[0].set_ylim(min(heights) - 0.02, max(heights) + 0.01)
    for path in paths:
        save(figure, path)


def _lines(rows: Sequence[Row], drawn: Sequence[Series]) -> list[Line]:
    lines = []
    for series in drawn:
        found = [(epsilon, auc(rows, series, epsilon)) for epsilon in epsilons_of(rows)]
        points = [Point(epsilon, y.value, y.low, y.high) for epsilon, y in found if y is not None]
        if points:
            lines.append(Line(_NUMBERS[series.algorithm], series.algorithm, points))
    return lines


def _levels(rows: Sequence[Row], head: str) -> list[Level]:
    """Return what was reached without noise, and with a local head at ε = 0."""
    found = [
        (auc(rows, REFERENCE, None), "non-private", "--", None),
        (auc(rows, OURS_WITHOUT_NOISE, None), "non-private, tpsl", "--", _NUMBERS[HEADLINE.algorithm]),
    ]
    if head == "local":
        found.append((auc(rows, HEADLINE_LOCAL, 0.0), "tpsl, ε = 0", ":", _NUMBERS[NETWORK]))
    return [Level(name, y.value, line, number) for y, name, line, number in found if y is not None]
