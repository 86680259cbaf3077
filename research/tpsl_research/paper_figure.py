"""The paper's figure 1: the trade-off between utility and privacy, two panels for each data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpsl_research.drawing import Level, Line, Point, draw_auc, panels, save, styled
from tpsl_research.paper import (
    DISCRETE,
    EPSILONS,
    GAUSSIAN,
    GAUSSIAN_CUT,
    LAPLACE,
    NON_PRIVATE,
    OURS,
    level_of,
    over_seeds,
)

_ALGORITHMS = (LAPLACE, DISCRETE, OURS, GAUSSIAN, GAUSSIAN_CUT)
_HAVE_EPSILON = _ALGORITHMS[:3]


@styled
def trade_off_figure(results: Mapping[str, Sequence[dict[str, Any]]], paths: Sequence[Path]) -> None:
    """Draw panels (a), (b), … and save them to every path (PNG, SVG or PDF by ending).

    For each data set: test AUC against ε, and test AUC against the measured shortest-distance AUC. Bars are one
    standard deviation over seeds; the dashed line is non-private training.
    """
    figure, axes = panels(2 * len(results))
    letters, remaining = iter("abcdefgh"), iter(axes)
    for data, rows in results.items():
        reference = over_seeds([row for row in rows if row["algorithm"] == NON_PRIVATE], "test_auc")
        for against in ("ε", "shortest-distance attack AUC"):
            lines = []
            for number, algorithm in enumerate(_HAVE_EPSILON if against == "ε" else _ALGORITHMS):
                own = [row for row in rows if row["algorithm"] == algorithm]
                points = [point for epsilon in EPSILONS for point in _points(own, epsilon, against)]
                if points:
                    lines.append(Line(number, algorithm, points))
            levels = [Level("non-private", reference.mean)]
            draw_auc(next(remaining), lines, levels, against, f"({next(letters)}) {data}")
    for path in paths:
        save(figure, path)


def _points(rows: Sequence[dict[str, Any]], epsilon: float, against: str) -> list[Point]:
    """Return where the runs at this ε stand, if any of them did not diverge."""
    chosen = [row for row in rows if level_of(row) == epsilon]
    found = over_seeds(chosen, "test_auc")
    if not found.seeds:
        return []
    x = epsilon if against == "ε" else over_seeds(chosen, "shortest_distance_auc").mean
    return [Point(x, found.mean, found.mean - found.spread, found.mean + found.spread)]
