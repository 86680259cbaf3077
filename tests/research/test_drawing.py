"""The one way in which test AUC is drawn against ε."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tpsl_research.drawing import Level, Line, Point, draw_auc, panels, save, style_of, styled

LINES = [
    Line(0, "one", [Point(0.1, 0.6, 0.58, 0.63), Point(1.0, 0.7, math.nan, math.nan), Point(1.05, 0.71, 0.7, 0.72)]),
    Line(3, "other $x$", [Point(4.0, 0.75, 0.7, 0.8)], joined=[(3.0, 0.74), (5.0, 0.76)]),
]
LEVELS = [Level("without noise", 0.8), Level("_hidden?", 0.5, ":", number=3)]


def test_points_lines_levels_and_ticks_stand_where_they_should() -> None:
    _, (panel,) = panels(1)
    draw_auc(panel, LINES, LEVELS, "ε", "a title")
    drawn = {(line.get_linestyle(), tuple(line.get_xdata()), tuple(line.get_ydata())) for line in panel.get_lines()}
    assert ("None", (0.1, 1.0, 1.05), (0.6, 0.7, 0.71)) in drawn
    assert ("-", (0.1, 1.0, 1.05), (0.6, 0.7, 0.71)) in drawn
    assert ("-", (3.0, 5.0), (0.74, 0.76)) in drawn, "through what is joined, not through the point"
    assert {(line, y) for line, x, y in drawn if x == (0, 1)} == {("--", (0.8, 0.8)), (":", (0.5, 0.5))}
    bars = [segment for bar in panel.collections for segment in bar.get_segments() if len(segment)]
    ends = [(float(low[0]), round(float(low[1]), 9), round(float(high[1]), 9)) for low, high in bars]
    assert (0.1, 0.58, 0.63) in ends and (4.0, 0.7, 0.8) in ends
    assert panel.get_xscale() == "log"
    assert panel.get_xticks().tolist() == [0.1, 1.0, 4.0], "1.05 would run into 1"
    legend = panel.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["without noise", " _hidden?", "one", r"other \$x\$"]


def test_other_axes_are_linear_and_styles_differ() -> None:
    _, (panel, _) = panels(2, sharey=True)
    draw_auc(panel, LINES, [], "attack AUC", "a title")
    assert (panel.get_xscale(), panel.get_xlabel(), panel.get_ylabel()) == ("linear", "attack AUC", "test AUC")
    assert len({tuple(style_of(number).values()) for number in range(32)}) == 32


def test_a_figure_is_of_the_kind_its_name_says_and_the_same_every_time(tmp_path: Path) -> None:
    @styled
    def drawn() -> bytes:
        figure, (panel,) = panels(1)
        draw_auc(panel, LINES, LEVELS, "ε", "a title")
        save(figure, tmp_path / "figure.svg")
        return (tmp_path / "figure.svg").read_bytes()

    assert drawn() == drawn()
    assert (tmp_path / "figure.svg").stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyError, match="gif"):
        save(panels(1)[0], tmp_path / "figure.gif")
