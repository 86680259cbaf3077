"""Figures for papers from runs. They are the label party's: test and attack AUCs depend on true labels."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from tpsl.report.run_view import RunView
from tpsl.report.verdicts import strongest_attack, tested_auc
from tpsl_research.drawing import (
    FAINT,
    FORMATS,
    INK,
    Format,
    Level,
    Line,
    Point,
    as_it_is,
    draw_auc,
    finish,
    panels,
    save,
    style_of,
    styled,
)

_MOST_MARKERS = 30


def write_figures(
    views: Sequence[RunView], folder: Path, formats: Sequence[Format] = FORMATS
) -> tuple[list[Path], dict[str, str]]:
    """Draw every figure that the runs have numbers for, in every format.

    Return the files, and for each figure that could not be drawn the reason. All figures: `epsilon` and `attack` (test
    AUC against ε and against the AUC of the shortest-distance attack, a panel for each data set), `curves` (test AUC
    after each epoch) and, of each run that was attacked, `roc-NAME`.
    """
    written: list[Path] = []

    def write(name: str, figure: Figure) -> None:
        for kind in formats:
            written.append(folder / f"{name}.{kind}")
            save(figure, written[-1])

    left_out: dict[str, str] = {}
    for name, (draw, needs) in _COMPARISONS.items():
        figure = draw(views)
        if figure is None:
            left_out[name] = needs
        else:
            write(name, figure)
    taken: set[str] = set()
    for view in views:
        if _roc_curves(view):
            plain = f"roc-{_file_name(view['name'])}"
            candidates = (plain if number == 1 else f"{plain}-{number}" for number in itertools.count(1))
            name = next(candidate for candidate in candidates if candidate not in taken)
            taken.add(name)
            write(name, roc_figure(view))
    if not taken:
        left_out["roc"] = "needs a run that was attacked (`tpsl attack RUN`)"
    return written, left_out


@styled
def epsilon_figure(views: Sequence[RunView]) -> Figure | None:
    """Draw test AUC against ε, as the paper's figure 1 (a, c); None where no two runs can be compared."""
    return _trade_off(views, lambda view: view["promise"]["epsilon"] or None, "ε")


@styled
def attack_figure(views: Sequence[RunView]) -> Figure | None:
    """Draw test AUC against the AUC of the strongest attack on each run; None where no two runs can be compared."""
    return _trade_off(views, _attack_auc, "AUC of the strongest attack")


@styled
def curves_figure(views: Sequence[RunView]) -> Figure | None:
    """Draw the test AUC after each epoch; None where there is none yet."""
    groups = _by_data([view for view in views if _curve(view)])
    if not groups:
        return None
    figure, axes = panels(len(groups))
    for panel, runs in zip(axes, groups, strict=True):
        for number, view in enumerate(runs):
            points, style = _curve(view), style_of(number)
            if len(points) > _MOST_MARKERS:
                style["marker"] = None
            panel.plot(*zip(*points, strict=True), **style, label=as_it_is(view["name"]))
        panel.locator_params(axis="x", integer=True)
        finish(panel, "epoch", "test AUC", _title(runs))
    return figure


@styled
def roc_figure(view: RunView) -> Figure:
    """Draw the ROC curves of every attack on a run, beside what ε allows and what the mechanism's table predicts."""
    promise = view["promise"]
    figure, (panel,) = panels(1, (5.2, 3.2))
    corner = 0.0 if promise["epsilon"] is None else (1 - promise["delta"]) / (1 + math.exp(promise["epsilon"]))
    panel.plot(
        [0, 0, corner, 1 - promise["delta"], 1],
        [0, promise["delta"], 1 - corner, 1, 1],
        color=INK,
        linewidth=0.9,
        label="bound for the noisy label alone",
    )
    panel.plot([0, 1], [0, 1], color=FAINT, linestyle=":", label="guessing")
    if promise["closed_form_roc"]:
        panel.plot(*promise["closed_form_roc"], color=INK, linestyle="--", linewidth=0.9, label="best, by the formula")
    for number, (name, (attack, rates)) in enumerate(_roc_curves(view).items()):
        style = {**style_of(number), "marker": None}
        label = f"{name.replace('_', ' ')} ({attack['auc']:.3f})" if attack["auc"] is not None else name
        panel.plot([0, *rates["fpr"]], [0, *rates["tpr"]], **style, label=as_it_is(label))
    panel.set_aspect("equal")
    panel.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    panel.set_title(f"{as_it_is(view['name'])}, ε = {promise['epsilon_text']}", loc="left")
    figure.legend(loc="outside right center")
    return figure


_COMPARISONS: dict[str, tuple[Callable[[Sequence[RunView]], Figure | None], str]] = {
    "epsilon": (epsilon_figure, "needs two finished runs with a finite ε on the same data"),
    "attack": (attack_figure, "needs two finished runs on the same data that were attacked"),
    "curves": (curves_figure, "needs a run with a finished epoch"),
}


def series_name(view: RunView) -> str:
    """Return what runs have in common that one line of a figure joins."""
    promise = view["promise"]
    if promise["epsilon"] is None:
        return "non-private"
    draws = f", {promise['draws']} draws" if promise["draws"] > 1 else ""
    seeded = "" if promise["private"] else " (seeded: not private)"
    return f"{promise['mechanism']}, {promise['estimator']}{draws}{seeded}"


def _trade_off(views: Sequence[RunView], x: Callable[[RunView], float | None], against: str) -> Figure | None:
    """Points are runs, bars are the intervals of their AUCs, lines go through the means of runs with the same ε."""
    shown = [view for view in views if x(view) is not None and tested_auc(view) is not None]
    groups = [runs for runs in _by_data(shown) if len(runs) > 1]
    if not groups:
        return None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(map(series_name, shown)))}
    figure, axes = panels(len(groups))
    for panel, runs in zip(axes, groups, strict=True):
        lines = []
        for name, number in numbers.items():
            chosen = [(view["promise"]["epsilon"], _point(view, x)) for view in runs if series_name(view) == name]
            if chosen:
                lines.append(Line(number, name, [point for _, point in chosen], _means(chosen)))
        draw_auc(panel, lines, _levels(views, runs[0]), against, _title(runs))
    return figure


def _point(view: RunView, x: Callable[[RunView], float | None]) -> Point:
    """Return where a run stands; without an interval both ends are the AUC."""
    test, place, area = view["test"] or {}, x(view), tested_auc(view)
    assert place is not None and area is not None
    low, high = test.get("test_auc_low"), test.get("test_auc_high")
    return Point(place, area, area if low is None else min(low, area), area if high is None else max(high, area))


def _means(points: Sequence[tuple[float | None, Point]]) -> list[tuple[float, float]]:
    """Return the mean place of the points with the same ε, for each ε."""
    same: dict[float | None, list[Point]] = {}
    for epsilon, point in points:
        same.setdefault(epsilon, []).append(point)
    return sorted((mean(point.x for point in level), mean(point.auc for point in level)) for level in same.values())


def _levels(views: Sequence[RunView], of: RunView) -> list[Level]:
    """Return the mean test AUC of runs without noise on the same data, if there are any."""
    same = [view for view in views if view["promise"]["epsilon"] is None and view["data_group"] == of["data_group"]]
    areas = [area for area in map(tested_auc, same) if area is not None]
    return [Level("without privacy", mean(areas))] if areas else []


def _title(runs: Sequence[RunView]) -> str:
    records = next((view["train_records"] for view in runs if view["train_records"]), None)
    return runs[0]["data"] + (f", {records:,} training records" if records else "")


def _by_data(views: Sequence[RunView]) -> list[list[RunView]]:
    groups: dict[str, list[RunView]] = {}
    for view in views:
        groups.setdefault(view["data_group"], []).append(view)
    return list(groups.values())


def _curve(view: RunView) -> list[tuple[int, float]]:
    return [(entry["epoch"], entry["test_auc"]) for entry in view["curves"] if entry.get("test_auc") is not None]


def _roc_curves(view: RunView) -> Mapping[str, tuple[dict[str, Any], dict[str, Any]]]:
    found = (view["attacks"] or {}).get("attacks", {})
    return {name: (attack, attack["roc"]) for name, attack in found.items() if attack.get("roc")}


def _attack_auc(view: RunView) -> float | None:
    attack = strongest_attack(view)
    return attack and attack["auc"]


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:80] or "run"
