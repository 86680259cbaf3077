"""The charts of runs: each function returns one specification, or None where there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np

from tpsl.metrics import GUESSING
from tpsl.report.chart import Axis, Cell, Chart, Rule, Series
from tpsl.report.run_view import Attack, Interval, Promise, RunView
from tpsl.report.words import (
    KINDS,
    MISSING,
    NO_NUMBER,
    auc_text,
    bound_text,
    count_text,
    measured_text,
    significant,
    spoken,
)

METRICS = {
    "test_auc": "Test AUC",
    "test_log_loss": "Test log loss",
    "validation_auc": "Hold-out AUC, estimated from noisy labels",
    "validation_loss": "Hold-out loss, estimated from noisy labels",
}
"""The metrics of an epoch that are drawn."""
_RUN_ROLES = 6
_MANY = 8
_MOST_COLUMNS = 12
_FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)


# ---- attacks


def allowed(promise: Promise) -> tuple[list[float], list[float]]:
    """Return what (ε, δ) allows, as FPR and TPR: no ROC curve by the noisy label alone lies above it on average."""
    corner = 0.0 if promise.epsilon is None else (1 - promise.delta) / (1 + math.exp(promise.epsilon))
    return [0, 0, corner, 1 - promise.delta, 1], [0, promise.delta, 1 - corner, 1, 1]


def roc(view: RunView) -> Chart | None:
    """Return ROC curves of attacks that score by the noisy label alone, and the bound of that kind of attacker."""
    promise = view.promise
    attacks = [
        attack for attack in (view.attacks.made if view.attacks else ()) if attack.roc and attack.kind == "noisy label"
    ]
    if not attacks:
        return None
    series = [
        Series("bound, by ε", *allowed(promise), ("area", "line"), "limit"),
        Series("guessing", [0, 1], [0, 1], ("line",), "limit", number=2),
    ]
    for number, attack in enumerate(attacks):
        name = f"{spoken(attack.name)} ({attack.auc.value:.3f})"
        series.append(Series(name, *(attack.roc or ((), ())), ("line",), "attack", number=number))
    drawn = [one for one in series if one.name != "guessing"]
    return Chart(
        "roc",
        "ROC of attacks by the noisy label alone",
        f"ROC curves of {len(attacks)} attacks, the mean over batches, beside the bound that follows from ε.",
        series,
        _percent("false alarms (FPR)"),
        _percent("positives found (TPR)"),
        (),
        ["Attack", *(f"TPR at {significant(100 * rate)} % FPR" for rate in _FALSE_ALARMS)],
        [[Cell(one.name), *(_found(one, rate) for rate in _FALSE_ALARMS)] for one in drawn],
        square=True,
    )


def _percent(title: str) -> Axis:
    return Axis(title, -0.01, 1.02, percent=True, at=(0.0, 0.25, 0.5, 0.75, 1.0))


def _found(curve: Series, rate: float) -> Cell:
    """Return the TPR at an FPR; where the curve is upright, the highest."""
    value = float(np.interp(rate, [x or 0.0 for x in curve.x], [y or 0.0 for y in curve.y]))
    return Cell(f"{value:.4f}", value)


def attack_areas(view: RunView) -> Chart | None:
    """Return the AUC of each attack that was made, beside the bound of its own kind of attacker."""
    made = view.attacks.made if view.attacks else ()
    if not made:
        return None
    largest = max(made, key=lambda attack: attack.auc.value)
    texts = [
        f"{spoken(attack.name)}: AUC {measured_text(*attack.auc)}; bound {bound_text(*(attack.bound or NO_NUMBER))}, "
        f"{KINDS.get(attack.kind, '')}; the attacker has {attack.needs}"
        for attack in made
    ]

    def series(title: str, marks: Any, role: str, of: Callable[[Attack], Interval | None], number: int = 0) -> Series:
        value, low, high = zip(*(of(attack) or NO_NUMBER for attack in made), strict=True)
        return Series(title, value, range(len(made)), marks, role, low, high, number, texts)

    def formula(attack: Attack) -> Interval | None:
        return None if attack.closed_form is None else Interval.at(attack.closed_form)

    return Chart(
        "attacks",
        "Attack AUC",
        f"{len(made)} attacks, each beside the bound of its own kind of attacker; "
        f"the strongest is {spoken(largest.name)} with AUC {auc_text(largest.auc.value)}.",
        [
            series("bound of its kind of attacker", ("ticks",), "limit", lambda attack: attack.bound),
            series("by the formula", ("points",), "limit", formula, 2),
            series("measured, 95 % interval", ("points",), "attack", lambda attack: attack.auc),
        ],
        Axis("attack AUC", min(0.45, *(attack.auc.value for attack in made)) - 0.02, 1.01),
        Axis(rows=[spoken(attack.name) for attack in made]),
        [Rule("guessing", GUESSING, "limit", upright=True)],
        list(_ATTACK_COLUMNS),
        [
            [
                Cell(spoken(attack.name)),
                Cell(attack.needs),
                _area(*attack.auc),
                _area(attack.closed_form),
                Cell(bound_text(*(attack.bound or NO_NUMBER)), attack.bound and attack.bound.value),
                _area(attack.tpr_0_001),
                _area(attack.tpr_0_01),
                Cell(count_text(attack.records), attack.records),
            ]
            for attack in made
        ],
    )


_ATTACK_COLUMNS = (
    *("Attack", "The attacker has", "AUC", "By the formula", "Bound of its kind"),
    *("TPR at 0.1 % FPR", "TPR at 1 % FPR", "Records"),
)


# ---- on test records


def calibration(view: RunView) -> Chart | None:
    """Return how often test records are of class 1 beside the probability that was predicted, in ten bins."""
    bins = view.test_curves.calibration if view.test_curves else ()
    if len(bins) < 2:
        return None
    (_, predicted, observed), error = zip(*bins, strict=True), (view.scores or {}).get("calibration error")
    what = "observed rate of class 1" if view.classes == 2 else "accuracy"
    return Chart(
        "calibration",
        "Calibration",
        f"On the diagonal a prediction comes true as often as it says; the calibration error is {significant(error)}.",
        [
            Series("calibrated", [0, 1], [0, 1], ("line",), "limit", number=1),
            Series("this run, in bins of equally many records", predicted, observed, ("line", "points"), "utility"),
        ],
        _percent("predicted probability"),
        _percent(what),
        columns=["Records", "Predicted", what.capitalize()],
        rows=[
            [Cell(count_text(count), count), Cell(f"{p:.4f}", p), Cell(f"{rate:.4f}", rate)] for count, p, rate in bins
        ],
        square=True,
    )


def precision_recall(view: RunView) -> Chart | None:
    """Return precision against recall of class 1, beside the share of class 1, which guessing has."""
    found = view.test_curves
    if found is None or not found.precision_recall:
        return None
    (recall, precision), share = (
        zip(*found.precision_recall, strict=True),
        found.records_by_class[1] / sum(found.records_by_class),
    )
    return Chart(
        "precision-recall",
        "Precision and recall",
        f"Of class 1, which {100 * share:.1f} % of the test records have.",
        [Series("this run", recall, precision, ("line",), "utility")],
        _percent("recall"),
        _percent("precision"),
        [Rule(f"guessing ({100 * share:.1f} %)", share, "limit")],
        ["Recall", "Precision"],
        [[Cell(f"{r:.4f}", r), Cell(f"{p:.4f}", p)] for r, p in found.precision_recall[::5]],
        square=True,
    )


def importance(view: RunView) -> Chart | None:
    """Return how far the effects of each column spread in the additive part."""
    shown = view.importance[:_MOST_COLUMNS]
    if not shown:
        return None
    names, spread = zip(*shown, strict=True)
    more = len(view.importance) - len(shown)
    return Chart(
        "importance",
        "What columns matter",
        "How far the effects of a column spread in the additive part, fitted on noisy labels; pairs of columns add to "
        f"it. Most for {names[0]}.{f' {more} more are in the table.' if more > 0 else ''}",
        [Series("spread of its effects", spread, range(len(names)), ("points",), "utility", [0] * len(names), spread)],
        Axis("standard deviation, log-odds", 0.0),
        Axis(rows=names),
        columns=["Column", "Spread of its effects"],
        rows=[[Cell(name), Cell(f"{value:.4f}", value)] for name, value in view.importance],
    )


# ---- several runs, several epochs


def series_name(view: RunView) -> str:
    """Return what runs have in common that one line of a chart joins."""
    promise = view.promise
    if promise.epsilon is None:
        return "without noise"
    draws = f", {promise.draws} draws" if promise.draws > 1 else ""
    seeded = "" if promise.private else " (seeded: not private)"
    return f"{promise.mechanism}, {promise.estimator}{draws}{seeded}"


_Point = tuple[RunView, float, Interval]
"""A run, where it stands, and the test AUC of its model."""


def trade_off(views: Sequence[RunView], against: str) -> Chart | None:
    """Return test AUC against the run's own `epsilon`, or against the AUC of the strongest `attack` on the run.

    The runs are of one data set. Lines go through the means of runs with the same ε, such as several seeds.
    """

    def place(view: RunView) -> float | None:
        if against == "epsilon":
            return view.promise.epsilon or None
        return view.attack_auc.value if view.attack_auc else None

    shown = [(view, x, area) for view in views if (x := place(view)) is not None and (area := view.auc)]
    if len(shown) < 2:
        return None
    reached, places = [area.value for *_, area in shown], sorted({x for _, x, _ in shown})
    plain = [area.value for view in views if view.promise.epsilon is None and (area := view.auc)]
    records = next((view.train_records for view, *_ in shown if view.train_records), None)
    across, rules = Axis("AUC of the strongest attack"), list[Rule]()
    if against == "epsilon":
        across = Axis("ε (logarithmic)", logarithmic=True, at=places if len(places) <= _MANY else ())
        rules = [Rule(f"without noise ({auc_text(mean(plain))})", mean(plain), "limit")] if plain else []
    return Chart(
        f"trade-off-{against}",
        shown[0][0].data + (f", {records:,} training records" if records else ""),
        f"{len(shown)} runs; test AUC from {auc_text(min(reached))} to {auc_text(max(reached))}.",
        [series for number, name in enumerate(_kinds(shown)) for series in _kind(shown, name, number)],
        across,
        Axis("test AUC"),
        rules,
        ["Run", "Mechanism", "ε", "Attack AUC", "Test AUC"],
        [
            [
                Cell(view.name),
                Cell(series_name(view)),
                Cell(view.promise.epsilon_text, view.promise.epsilon),
                _area(view.attack_auc.value if view.attack_auc else None),
                _area(*area),
            ]
            for view, _, area in shown
        ],
    )


def _kinds(shown: Sequence[_Point]) -> list[str]:
    return list(dict.fromkeys(series_name(view) for view, *_ in shown))


def _kind(shown: Sequence[_Point], name: str, number: int) -> list[Series]:
    """Return the runs of one mechanism as points, and the line through the means of those with the same ε."""
    points = [point for point in shown if series_name(point[0]) == name]
    levels: dict[float | None, list[tuple[float, float]]] = {}
    for view, x, area in points:
        levels.setdefault(view.promise.epsilon, []).append((x, area.value))
    means = sorted((mean(x for x, _ in level), mean(y for _, y in level)) for level in levels.values())
    texts = [f"{view.name}: ε = {view.budget}, test AUC {measured_text(*area)}" for view, _, area in points]
    xs, ys = [x for _, x, _ in points], [area.value for *_, area in points]
    lows, highs = (
        [min(area.low, area.value) for *_, area in points],
        [max(area.high, area.value) for *_, area in points],
    )
    role = f"run-{number % _RUN_ROLES + 1}"
    return [
        Series(f"{name}, mean", [x for x, _ in means], [y for _, y in means], ("line",), role, in_legend=False),
        Series(name, xs, ys, ("points",), role, lows, highs, number, texts),
    ]


def curves(views: Sequence[RunView], metric: str) -> Chart | None:
    """Return a metric of runs after each epoch; of one run with its interval."""
    measured = [[entry for entry in view.curves if entry.get(metric) is not None] for view in views]
    shown = [(view, entries) for view, entries in zip(views, measured, strict=True) if entries]
    if not shown:
        return None
    name, number = METRICS[metric], len(views)

    def text(entry: Mapping[str, Any]) -> str:
        return (
            measured_text(*(Interval.of(entry, metric) or NO_NUMBER)) if "auc" in metric else significant(entry[metric])
        )

    first, newest = shown[0][1][0], shown[0][1][-1]
    if all(len(entries) < 2 for _, entries in shown):
        told = ", ".join(f"{view.name} {text(entries[0])}" for view, entries in shown)
        return Chart(f"curves-{metric}", name, f"{name} after the one epoch that was measured: {told}.")
    last = max(entry["epoch"] for _, entries in shown for entry in entries)
    return Chart(
        f"curves-{metric}",
        name,
        f"{name} after each epoch, up to epoch {last}."
        if number > 1
        else f"From {text(first)} after epoch {first['epoch']} to {text(newest)} after epoch {newest['epoch']}.",
        [
            Series(
                view.name,
                [entry["epoch"] for entry in entries],
                [entry[metric] for entry in entries],
                ("line", "points") if len(entries) <= 30 else ("line",),
                f"run-{place % _RUN_ROLES + 1}" if number <= _MANY else "behind",
                [entry.get(f"{metric}_low") for entry in entries] if number == 1 else (),
                [entry.get(f"{metric}_high") for entry in entries] if number == 1 else (),
                place // _RUN_ROLES,
                [f"{view.name}, epoch {entry['epoch']}: {text(entry)}" for entry in entries],
                in_legend=1 < number <= _MANY,
            )
            for place, (view, entries) in enumerate(zip(views, measured, strict=True))
            if entries
        ],
        Axis("epoch", whole=True),
        Axis(name),
        (),
        ["Run", *(f"Epoch {epoch}" for epoch in range(1, last + 1))],
        [[Cell(view.name), *_by_epoch(entries, last, metric, text)] for view, entries in shown],
    )


def _by_epoch(
    entries: Sequence[Mapping[str, Any]], last: int, metric: str, text: Callable[[Mapping[str, Any]], str]
) -> list[Cell]:
    found = {entry["epoch"]: entry for entry in entries}
    return [
        Cell(text(found[epoch]), found[epoch][metric]) if epoch in found else Cell(MISSING)
        for epoch in range(1, last + 1)
    ]


def _area(value: float | None, low: float | None = None, high: float | None = None) -> Cell:
    return Cell(measured_text(value, low, high), value)
