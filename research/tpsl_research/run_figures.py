"""Figures for papers from runs. They are the label party's: test and attack AUCs depend on true labels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tpsl.report import charts
from tpsl.report.chart import Chart
from tpsl.report.run_view import RunView
from tpsl_research.drawing import FORMATS, Format, draw, finish, panels, save, styled


def write_figures(
    views: Sequence[RunView], folder: Path, formats: Sequence[Format] = FORMATS
) -> tuple[list[Path], dict[str, str]]:
    """Draw every figure that the runs have numbers for, in every format.

    Return the files, and for each figure that could not be drawn the reason. All figures: `epsilon` and `attack` (test
    AUC against ε and against the AUC of the strongest attack, a panel for each data set), `curves` (test AUC after each
    epoch) and, of each run that was attacked, `roc-NAME`.
    """
    written: list[Path] = []

    def write(name: str, figure: Figure) -> None:
        for kind in formats:
            written.append(folder / f"{name}.{kind}")
            save(figure, written[-1])

    left_out: dict[str, str] = {}
    for name, (figure_of, needs) in _COMPARISONS.items():
        figure = figure_of(views)
        if figure is None:
            left_out[name] = needs
        else:
            write(name, figure)
    taken: set[str] = set()
    for view in views:
        figure = roc_figure(view) if view.attacks else None
        if figure is not None:
            plain = f"roc-{_file_name(view.name)}"
            candidates = (plain if number == 1 else f"{plain}-{number}" for number in itertools.count(1))
            name = next(candidate for candidate in candidates if candidate not in taken)
            taken.add(name)
            write(name, figure)
    if not taken:
        left_out["roc"] = "needs a run that was attacked (`tpsl attack RUN`)"
    return written, left_out


def epsilon_figure(views: Sequence[RunView]) -> Figure | None:
    """Draw test AUC against ε, as the paper's figure 1 (a, c); None where no two runs can be compared."""
    return _by_data(views, lambda runs: charts.trade_off(runs, "epsilon"))


def attack_figure(views: Sequence[RunView]) -> Figure | None:
    """Draw test AUC against the AUC of the strongest attack on each run; None where no two runs can be compared."""
    return _by_data(views, lambda runs: charts.trade_off(runs, "attack"))


def curves_figure(views: Sequence[RunView]) -> Figure | None:
    """Draw the test AUC after each epoch; None where there is none yet."""
    return _by_data(views, lambda runs: charts.curves(runs, "test_auc"))


def roc_figure(view: RunView) -> Figure | None:
    """Draw ROC curves of attacks by the noisy label alone, beside what ε allows."""
    title = f"{view.name}, ε = {view.promise.epsilon_text}"
    return _by_data([view], lambda runs: charts.roc(runs[0]), (5.2, 3.2), title)


_COMPARISONS: dict[str, tuple[Callable[[Sequence[RunView]], Figure | None], str]] = {
    "epsilon": (epsilon_figure, "needs two finished runs with a finite ε on the same data"),
    "attack": (attack_figure, "needs two finished runs on the same data that were attacked"),
    "curves": (curves_figure, "needs a run with a finished epoch"),
}


@styled
def _by_data(
    views: Sequence[RunView],
    chart_of: Callable[[Sequence[RunView]], Chart | None],
    size: tuple[float, float] = (3.4, 2.6),
    title: str = "",
) -> Figure | None:
    """Return a figure with a panel for each data set of which there is a chart."""
    groups: dict[str, list[RunView]] = {}
    for view in views:
        groups.setdefault(view.data_group, []).append(view)
    found = [(runs, chart) for runs in groups.values() if (chart := chart_of(runs)) is not None and chart.series]
    if not found:
        return None
    figure, axes = panels(len(found), size)
    for panel, (runs, chart) in zip(axes, found, strict=True):
        draw(panel, chart)
        data = runs[0].data
        named = chart.title if chart.title.startswith(data) else f"{data}: {chart.title}"
        finish(panel, chart.x.title, chart.y.title, title or named)
    return figure


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:80] or "run"
