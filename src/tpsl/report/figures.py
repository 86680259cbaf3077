"""Figures for papers from runs: small, plain, with embedded fonts, and of the same bytes for the same runs.

They are the label party's: test and attack AUCs depend on true labels.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args

from tpsl.files import write_atomically
from tpsl.report.run_view import RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)

_COLOURS = ("#0b6b6b", "#b45309", "#2f5fb0", "#8a3a79", "#5f6f16", "#b0304f", "#6b5b3e", "#585d66")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "h")
_LINES = ("-", "--", ":", "-.")
_INK, _FAINT = "#1c1f24", "#8b8f96"
_PANEL = (3.4, 2.6)  # inches: one column of a paper
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
_SAME_BYTES: dict[Format, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


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
            path = folder / f"{name}.{kind}"
            write_atomically(path, _encoded(figure, kind))
            written.append(path)

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


P = ParamSpec("P")
Drawn = TypeVar("Drawn")


def _styled(draw: Callable[P, Drawn]) -> Callable[P, Drawn]:
    """Let a function draw in our style, and leave that of the process as it is."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Drawn:
        from matplotlib import rc_context

        with rc_context(_STYLE):
            return draw(*args, **kwargs)

    return styled


@_styled
def epsilon_figure(views: Sequence[RunView]) -> Figure | None:
    """Draw test AUC against ε, as the paper's figure 1 (a, c); None where no two runs can be compared."""
    return _trade_off(views, lambda view: view["promise"]["epsilon"] or None, "ε", logarithmic=True)


@_styled
def attack_figure(views: Sequence[RunView]) -> Figure | None:
    """Draw test AUC against attack AUC, as the paper's figure 1 (b, d); None where no two runs can be compared."""
    return _trade_off(views, _attack_auc, "shortest-distance attack AUC", logarithmic=False)


@_styled
def curves_figure(views: Sequence[RunView]) -> Figure | None:
    """Draw the test AUC after each epoch; None where there is none yet."""
    groups = _by_data([view for view in views if _curve(view)])
    if not groups:
        return None
    figure, panels = _panels(len(groups))
    for panel, runs in zip(panels, groups, strict=True):
        for number, view in enumerate(runs):
            points = _curve(view)
            colour, line = _COLOURS[number % len(_COLOURS)], _LINES[number // len(_COLOURS) % len(_LINES)]
            marker = _MARKERS[number % len(_MARKERS)] if len(points) <= 30 else None
            panel.plot(
                *zip(*points, strict=True), color=colour, linestyle=line, marker=marker, label=_text(view["name"])
            )
        panel.locator_params(axis="x", integer=True)
        _finish(panel, runs, "epoch", "test AUC")
    return figure


@_styled
def roc_figure(view: RunView) -> Figure:
    """Draw the ROC curves of every attack on a run, beside what ε allows and what the mechanism's table predicts."""
    promise = view["promise"]
    figure, (panel,) = _panels(1, (5.2, 3.2))
    corner = 0.0 if promise["epsilon"] is None else (1 - promise["delta"]) / (1 + math.exp(promise["epsilon"]))
    panel.plot(
        [0, 0, corner, 1 - promise["delta"], 1],
        [0, promise["delta"], 1 - corner, 1, 1],
        color=_INK,
        linewidth=0.9,
        label="the most ε allows the noisy label",
    )
    panel.plot([0, 1], [0, 1], color=_FAINT, linestyle=":", label="guessing")
    if promise["closed_form_roc"]:
        panel.plot(*promise["closed_form_roc"], color=_INK, linestyle="--", linewidth=0.9, label="best, by the formula")
    for number, (name, (attack, rates)) in enumerate(_roc_curves(view).items()):
        colour = _COLOURS[number % len(_COLOURS)]
        line = _LINES[(number + number // len(_COLOURS)) % len(_LINES)]
        label = f"{name.replace('_', ' ')} ({attack['auc']:.3f})" if attack["auc"] is not None else name
        panel.plot([0, *rates["fpr"]], [0, *rates["tpr"]], color=colour, linestyle=line, label=_text(label))
    panel.set_aspect("equal")
    panel.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    panel.set_title(f"{_text(view['name'])}, ε = {promise['epsilon_text']}", loc="left")
    figure.legend(loc="outside right center")
    return figure


_COMPARISONS: dict[str, tuple[Callable[[Sequence[RunView]], Figure | None], str]] = {
    "epsilon": (epsilon_figure, "needs two finished runs with a finite ε on the same data"),
    "attack": (attack_figure, "needs two finished runs on the same data that shortest_distance has attacked"),
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


def _trade_off(
    views: Sequence[RunView], x: Callable[[RunView], float | None], name: str, *, logarithmic: bool
) -> Figure | None:
    """Points are runs, bars are the intervals of their AUCs, lines go through the means of runs with the same ε."""
    shown = [view for view in views if x(view) is not None and _test_auc(view) is not None]
    groups = [runs for runs in _by_data(shown) if len(runs) > 1]
    if not groups:
        return None
    kinds = list(dict.fromkeys(map(series_name, shown)))
    figure, panels = _panels(len(groups))
    for panel, runs in zip(panels, groups, strict=True):
        reference = _reference(views, runs[0])
        if reference is not None:
            panel.axhline(reference, color=_INK, linestyle="--", linewidth=0.8, label="without privacy")
        for number, kind in enumerate(kinds):
            points = [view for view in runs if series_name(view) == kind]
            if not points:
                continue
            colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
            areas = [_area(view) for view in points]
            panel.errorbar(
                [_number(x(view)) for view in points],
                [area for _, area, _ in areas],
                yerr=[[area - low for low, area, _ in areas], [high - area for _, area, high in areas]],
                color=colour,
                marker=marker,
                linestyle="none",
                elinewidth=0.8,
                label=_text(kind),
            )
            levels = {view["promise"]["epsilon"] for view in points}
            same = [[view for view in points if view["promise"]["epsilon"] == level] for level in levels]
            means = [
                (mean(_number(x(view)) for view in level), mean(_area(view)[1] for view in level)) for level in same
            ]
            panel.plot(*zip(*sorted(means), strict=True), color=colour)
        if logarithmic:
            panel.set_xscale("log")
            ticks: list[float] = []
            for level in sorted({_number(x(view)) for view in runs}):
                if not ticks or level > 1.3 * ticks[-1]:  # closer ones would run into each other
                    ticks.append(level)
            if len(ticks) <= 8:
                panel.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
                panel.minorticks_off()
        _finish(panel, runs, name, "test AUC")
    return figure


def _panels(count: int, size: tuple[float, float] = _PANEL) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    columns = min(count, 2)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, number + 1) for number in range(count)]


def _finish(panel: Axes, runs: Sequence[RunView], across: str, up: str) -> None:
    records = next((view["train_records"] for view in runs if view["train_records"]), None)
    panel.set(xlabel=across, ylabel=up)
    panel.set_title(_text(runs[0]["data"]) + (f", {records:,} training records" if records else ""), loc="left")
    if len(panel.get_lines()) <= 40:  # Beyond that, a legend says nothing.
        panel.legend()


@_styled
def _encoded(figure: Figure, kind: Format) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=300, metadata=_SAME_BYTES[kind])
    return content.getvalue()


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
    area: float | None = (view["attacks"] or {}).get("attacks", {}).get("shortest_distance", {}).get("auc")
    return area


def _test_auc(view: RunView) -> float | None:
    return (view["test"] or {}).get("test_auc")


def _area(view: RunView) -> tuple[float, float, float]:
    """Return lower end, AUC and upper end; without an interval all are the AUC."""
    test, area = view["test"] or {}, _number(_test_auc(view))
    low, high = test.get("test_auc_low"), test.get("test_auc_high")
    return (area if low is None else min(low, area)), area, (area if high is None else max(high, area))


def _reference(views: Sequence[RunView], of: RunView) -> float | None:
    same = [view for view in views if view["promise"]["epsilon"] is None and view["data_group"] == of["data_group"]]
    areas = [area for area in map(_test_auc, same) if area is not None]
    return mean(areas) if areas else None


def _number(value: float | None) -> float:
    assert value is not None
    return value


def _text(text: str) -> str:
    """Return a text that matplotlib shows as it is: no mathematics, and no label that it hides."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:80] or "run"
