"""The charts of the page, as HTML rows and inline SVG.

Horizontal places are percentages of the drawing's width and vertical ones pixels, so that a chart fills any screen
while its text and marks keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tpsl.report.markup import Markup, fragment, tag
from tpsl.report.scale import Scale, scale_for
from tpsl.report.summary import RunSummary
from tpsl.report.words import auc_text, baseline, difference_text, measured_text

_ROW, _MIDDLE = 52, 26
"""Height of a row's drawing, and the line its marks sit on."""


def cost_chart(rows: Sequence[RunSummary]) -> Markup:
    """Return each run's test AUC with its interval, and a line where the non-private run lies."""
    reference = baseline(rows)
    scale = scale_for(area for row in rows for area in (row.test_auc, row.test_auc_low, row.test_auc_high))
    legend = [(_dot("50%"), "test AUC"), (_interval("0%", "100%"), "confidence interval")]
    if reference is not None:
        legend.append((_upright("50%", "reference"), f"{reference.name} ({auc_text(reference.test_auc)})"))
    drawn = []
    for row in rows:
        marks = [_dot(_percent(scale, row.test_auc))]
        if not math.isnan(row.test_auc_low + row.test_auc_high):
            marks.insert(0, _interval(_percent(scale, row.test_auc_low), _percent(scale, row.test_auc_high)))
        if reference is not None:
            marks.insert(0, _upright(_percent(scale, reference.test_auc), "reference"))
        facts = [("test AUC", measured_text(row.test_auc, row.test_auc_low, row.test_auc_high))]
        loss = ""
        if reference is not None and reference is not row:
            loss = difference_text(row.test_auc, reference.test_auc)
            facts.append(("against non-private", loss))
        drawn.append(_row(row.name, scale, marks, auc_text(row.test_auc), loss, facts))
    return _chart("Test AUC of each run", drawn, scale, legend)


def attack_chart(rows: Sequence[RunSummary]) -> Markup:
    """Return each run's attack AUC as a bar from 0.5, beside the closed form and the ceiling."""
    known = (area for row in rows for area in (row.attack_auc, row.attack_auc_low))
    scale = scale_for([0.5, 1.0, *known], most_ticks=7)  # 0.5 stays a tick where an attack did worse than guessing
    legend = [
        (fragment(_bar("0%", "50%"), _interval("25%", "75%"), _dot("50%")), "attack AUC, with its interval"),
        (_diamond("50%"), "what the mechanism’s formula predicts"),
        (_upright("50%", "ceiling"), "the most that ε allows any attack"),
    ]
    drawn = []
    for row in rows:
        guessing = _percent(scale, 0.5)
        marks = [_upright(guessing, "guessing"), _upright(_percent(scale, row.ceiling), "ceiling")]
        if not math.isnan(row.attack_auc):
            marks.append(_bar(*sorted((guessing, _percent(scale, row.attack_auc)), key=_number)))
        if not math.isnan(row.attack_auc_low + row.attack_auc_high):
            marks.append(_interval(_percent(scale, row.attack_auc_low), _percent(scale, row.attack_auc_high)))
        if not math.isnan(row.attack_auc):
            marks.append(_dot(_percent(scale, row.attack_auc)))
        if not math.isnan(row.attack_closed_form):
            marks.append(_diamond(_percent(scale, row.attack_closed_form)))
        facts = [
            ("attack AUC", measured_text(row.attack_auc, row.attack_auc_low, row.attack_auc_high)),
            ("formula", auc_text(row.attack_closed_form)),
            ("ceiling", auc_text(row.ceiling)),
        ]
        value = "not attacked" if math.isnan(row.attack_auc) else auc_text(row.attack_auc)
        drawn.append(_row(row.name, scale, marks, value, f"ceiling {auc_text(row.ceiling)}", facts))
    return _chart("Shortest-distance attack on each run", drawn, scale, legend)


def _chart(label: str, rows: list[Markup], scale: Scale, legend: list[tuple[Markup, str]]) -> Markup:
    ticks = (tag("text", scale.label(tick), x=_percent(scale, tick), y=14) for tick in scale.ticks)
    axis = tag("div", tag("svg", *ticks, class_="track", height=20), class_="row axis", aria_hidden="true")
    keys = (
        tag("li", tag("svg", _lowered(sample), width=28, height=20, aria_hidden="true"), meaning)
        for sample, meaning in legend
    )
    return tag(
        "figure",
        *rows,
        axis,
        tag("figcaption", tag("ul", *keys, class_="legend")),
        class_="chart",
        role="group",
        aria_label=label,
    )


def _row(
    name: str, scale: Scale, marks: Iterable[Markup], value: str, beside: str, facts: Sequence[tuple[str, str]]
) -> Markup:
    """Return a run's name, its drawing (which has the tooltip) and its number."""
    grid = (
        tag("line", class_="grid", x1=_percent(scale, tick), x2=_percent(scale, tick), y1=0, y2=_ROW)
        for tick in scale.ticks
    )
    drawing = tag(
        "svg",
        *grid,
        *marks,
        class_="track",
        height=_ROW,
        role="img",
        tabindex=0,
        aria_label=f"{name}: " + ", ".join(f"{what} {number}" for what, number in facts),
        data_tip="\n".join([name, *(f"{what} {number}" for what, number in facts)]),
    )
    number = tag("div", tag("b", value), tag("small", beside), class_="row-value")
    return tag("div", tag("div", name, class_="row-name"), drawing, number, class_="row")


def _percent(scale: Scale, area: float) -> str:
    return f"{100 * scale.share(area):.3f}%"


def _number(percent: str) -> float:
    return float(percent.rstrip("%"))


def _dot(x: str) -> Markup:
    return tag("circle", class_="dot", cx=x, cy=_MIDDLE, r=5.5)


def _interval(low: str, high: str) -> Markup:
    return tag("line", class_="interval", x1=low, x2=high, y1=_MIDDLE, y2=_MIDDLE)


def _upright(x: str, kind: str) -> Markup:
    return tag("line", class_=kind, x1=x, x2=x, y1=_MIDDLE - 14, y2=_MIDDLE + 14)


def _bar(low: str, high: str) -> Markup:
    return tag("rect", class_="bar", x=low, y=_MIDDLE - 5, width=f"{_number(high) - _number(low):.3f}%", height=10)


def _diamond(x: str) -> Markup:
    # A path knows no percentages; a nested drawing of no size carries it to its place.
    return tag("svg", tag("path", class_="diamond", d="M0-10 10 0 0 10-10 0Z"), x=x, y=_MIDDLE, overflow="visible")


def _lowered(sample: Markup) -> Markup:
    """Return the marks moved from the middle of a row to the middle of a legend's key."""
    return tag("svg", sample, y=10 - _MIDDLE, overflow="visible")
