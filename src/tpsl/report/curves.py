"""Training curves: one small panel for each run, the other runs in grey behind it."""

from __future__ import annotations

from collections.abc import Sequence

from tpsl.report.markup import Markup, tag
from tpsl.report.scale import Scale, scale_for
from tpsl.report.summary import RunSummary
from tpsl.report.words import auc_text

_TOP, _BOTTOM, _HEIGHT = 18, 142, 164
"""Where the highest and the lowest tick lie, in pixels, and the height of a panel."""
_LEFT, _RIGHT = 16.0, 97.0
"""Where the first and the last epoch lie, in percent; the labels of the ticks stand to the left."""


def curve_panels(rows: Sequence[RunSummary]) -> Markup | None:
    """Return the test AUC by epoch of every run that has one, all on the same axes; None if no run has two epochs."""
    trained = [row for row in rows if row.auc_by_epoch]
    epochs = max((len(row.auc_by_epoch) for row in trained), default=0)
    if epochs < 2:
        return None
    scale = scale_for((area for row in trained for area in row.auc_by_epoch), most_ticks=5)
    return tag("div", *(_panel(row, trained, scale, epochs) for row in trained), class_="panels")


def _panel(row: RunSummary, others: Sequence[RunSummary], scale: Scale, epochs: int) -> Markup:
    areas = row.auc_by_epoch
    best = max(areas)
    facts = [f"epoch 1: {auc_text(areas[0])}"]
    if len(areas) > 1:
        facts.append(f"best: {auc_text(best)} at epoch {areas.index(best) + 1}")
        facts.append(f"epoch {len(areas)}: {auc_text(areas[-1])}")
    grid = (
        tag(
            "g",
            tag("line", class_="grid", x1="0%", x2="100%", y1=_y(scale, tick), y2=_y(scale, tick)),
            tag("text", scale.label(tick), x=0, y=_y(scale, tick) - 4),
        )
        for tick in scale.ticks
    )
    drawing = tag(
        "svg",
        *grid,
        tag("text", "epoch 1", x=_x(1, epochs), y=_HEIGHT - 4),
        tag("text", str(epochs), x=_x(epochs, epochs), y=_HEIGHT - 4),
        *(_line(other, scale, epochs, "behind") for other in others if other is not row),
        _line(row, scale, epochs, "curve"),
        *(_point(row, epoch, scale, epochs) for epoch in range(1, len(areas) + 1)),
        class_="panel",
        height=_HEIGHT,
        role="img",
        tabindex=0,
        aria_label=f"{row.name}, test AUC: " + ", ".join(facts),
        data_tip="\n".join([row.name, *facts]),
    )
    return tag("figure", tag("figcaption", row.name), drawing)


def _line(row: RunSummary, scale: Scale, epochs: int, kind: str) -> Markup:
    points = " ".join(
        f"{_x(epoch, epochs).rstrip('%')},{_y(scale, area)}" for epoch, area in enumerate(row.auc_by_epoch, start=1)
    )
    # A polyline knows no percentages; this drawing stretches 100 units over the width.
    return tag(
        "svg",
        tag("polyline", class_=kind, points=points),
        viewBox=f"0 0 100 {_HEIGHT}",
        preserveAspectRatio="none",
        width="100%",
        height=_HEIGHT,
    )


def _point(row: RunSummary, epoch: int, scale: Scale, epochs: int) -> Markup:
    area = row.auc_by_epoch[epoch - 1]
    x, y = _x(epoch, epochs), _y(scale, area)
    return tag(
        "g",
        tag("circle", class_="reach", cx=x, cy=y, r=12),
        tag("circle", class_="dot", cx=x, cy=y, r=3.5 if epochs <= 30 else 1.5),
        data_tip=f"{row.name}\nepoch {epoch}: {auc_text(area)}",
    )


def _x(epoch: int, epochs: int) -> str:
    return f"{_LEFT + (epoch - 1) / (epochs - 1) * (_RIGHT - _LEFT):.3f}%"


def _y(scale: Scale, area: float) -> float:
    return round(_BOTTOM - scale.share(area) * (_BOTTOM - _TOP), 2)
