"""Numbers and promises in plain words. Whatever bounds a leak (ε, δ, e^ε) is rounded up, never down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context, Decimal

from tpsl.report.summary import RunSummary

MISSING = "–"
"""Shown where there is no number."""


def rounded_up(value: float, digits: int) -> str:
    """Return the value with at most `digits` significant digits, never below the value; infinity is `∞`."""
    if math.isinf(value):
        return "∞"
    # From the shortest decimal that names the float: from its exact binary value 0.1 would become 0.1001.
    bound = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(value))).normalize()
    return f"{bound:f}" if value == 0 or value >= 1e-3 else f"{bound:e}".replace("e-0", "e-")


def epsilon_text(row: RunSummary) -> str:
    """Return `ε` or, where δ is not zero, `ε, δ = …` as it is shown everywhere."""
    epsilon = rounded_up(row.epsilon, 4)
    return f"{epsilon}, δ = {rounded_up(row.delta, 2)}" if row.delta else epsilon


def auc_text(area: float) -> str:
    """Return an AUC with four decimals."""
    return MISSING if math.isnan(area) else f"{area:.4f}"


def interval_text(low: float, high: float) -> str:
    """Return the interval as `low–high`, or nothing where an end is missing."""
    return "" if math.isnan(low) or math.isnan(high) else f"{low:.4f}–{high:.4f}"


def measured_text(area: float, low: float, high: float) -> str:
    """Return an AUC followed by its interval, if it has one, in parentheses."""
    interval = interval_text(low, high)
    return f"{auc_text(area)} ({interval})" if interval else auc_text(area)


def difference_text(area: float, reference: float) -> str:
    """Return by how much an AUC differs from a reference, with its sign."""
    return f"{area - reference:+.4f}".replace("-", "−")


def privacy_text(row: RunSummary) -> str:
    """Return whether the run is private and, if it is not, why."""
    if row.private:
        return "yes"
    return "no: no noise" if math.isinf(row.epsilon) else "no: seeded noise"


def promise(row: RunSummary) -> str:
    """Return what the run promises about every record's label, for a reader who knows no mathematics."""
    if math.isinf(row.epsilon):
        return "No noise was added. The gradients show the labels, and nothing is promised about them."
    if not row.private:
        return (
            "The noise was drawn from a seed, so whoever knows the seed can take it away again. Nothing is promised; "
            "the same run with secret noise would promise the ε shown here."
        )
    factor = rounded_up(math.exp(row.epsilon), 3) if row.epsilon < 13 else f"e^{rounded_up(row.epsilon, 4)}"
    slack = f", apart from a slack of δ = {rounded_up(row.delta, 2)} in probability" if row.delta else ""
    return (
        "Everything that crosses the border, however it is combined with other knowledge, changes the odds of a "
        f"record’s label by a factor of at most {factor}{slack}."
    )


def baseline(rows: Sequence[RunSummary]) -> RunSummary | None:
    """Return the run the others are measured against: the first without noise, if there is one."""
    return next((row for row in rows if math.isinf(row.epsilon)), None)
