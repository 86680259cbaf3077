"""The frontier as a figure: test AUC against ε, private heads on the left, local heads on the right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tpsl_research.drawing import Level, Line, Point, draw_auc, panels, save, styled
from tpsl_research.frontier import BASELINES, OURS, Row
from tpsl_research.frontier_report import HEADLINE, REFERENCE, Series, auc, epsilons_of

_ALGORITHMS = (*BASELINES, OURS)
_OURS = _ALGORITHMS.index(OURS)


@styled
def frontier_figure(rows: Sequence[Row], data: str, paths: Sequence[Path]) -> None:
    """Draw the frontier and save it to every path (PNG, SVG or PDF by ending).

    Bars are 95 % t-intervals over seeds. Gaussian noise stands at the ε of the Laplace noise that lets the
    shortest-distance attack through as often; its own ε is larger. The dotted line is what is left at ε = 0, where the
    feature party gets nothing back.
    """
    figure, axes = panels(2, sharey=True)
    heights: list[float] = []
    for panel, rule in zip(axes, ("best", "local"), strict=True):
        lines, levels = _lines(rows, rule), _levels(rows, rule)
        draw_auc(panel, lines, levels, "ε", f"{data}, {'local' if rule == 'local' else 'private'} head")
        heights += [point.auc for line in lines for point in line.points] + [level.auc for level in levels]
    if heights:  # Intervals of two seeds are wider than the picture; the lines decide what it shows.
        axes[0].set_ylim(min(heights) - 0.02, max(heights) + 0.01)
    for path in paths:
        save(figure, path)


def _lines(rows: Sequence[Row], rule: str) -> list[Line]:
    lines = []
    for number, algorithm in enumerate(_ALGORITHMS):
        series = HEADLINE if (algorithm, rule) == (OURS, "best") else Series(algorithm, rule)
        found = [(epsilon, auc(rows, series, epsilon)) for epsilon in epsilons_of(rows)]
        points = [Point(epsilon, y.value, y.low, y.high) for epsilon, y in found if y is not None]
        if points:
            lines.append(Line(number, algorithm, points))
    return lines


def _levels(rows: Sequence[Row], rule: str) -> list[Level]:
    """Return what was reached without noise, and at ε = 0."""
    found = (
        (auc(rows, REFERENCE, None), "non-private", "--", None),
        (auc(rows, HEADLINE, None), f"non-private, {OURS}", "--", _OURS),
        (auc(rows, Series(OURS, rule), 0.0), f"{OURS}, ε = 0", ":", _OURS),
    )
    return [Level(name, y.value, line, number) for y, name, line, number in found if y is not None]
