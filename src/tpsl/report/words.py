"""Numbers and promises in plain words. Whatever bounds a leak (ε, δ, e^ε) is rounded up, never down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from tpsl.report.run_view import RunView

MISSING = "–"
"""Shown where there is no number."""


def rounded_up(value: float, digits: int) -> str:
    """Return the value with at most `digits` significant digits, never below the value; infinity is `∞`."""
    if math.isinf(value):
        return "∞"
    # From the shortest decimal that names the float: from its exact binary value 0.1 would become 0.1001.
    bound = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(value))).normalize()
    return f"{bound:f}" if value == 0 or value >= 1e-3 else f"{bound:e}".replace("e-0", "e-")


def auc_text(area: float | None) -> str:
    """Return an AUC with four decimals."""
    return MISSING if area is None else f"{area:.4f}"


def measured_text(area: float | None, low: float | None, high: float | None) -> str:
    """Return an AUC followed by its interval, if it has one, in parentheses."""
    interval = interval_text(low, high)
    return f"{auc_text(area)} ({interval})" if interval else auc_text(area)


def ceiling_text(attack: Mapping[str, Any]) -> str:
    """Return the ceiling beside an attack's AUC: as it is where it is proved, with `≈` and `±` where it is estimated.

    What was found by a version that did not say whose ceiling it is has none.
    """
    ceiling, low, high = (attack.get(key) for key in ("ceiling", "ceiling_low", "ceiling_high"))
    if ceiling is None or low is None or high is None:
        return MISSING
    return f"≈ {ceiling:.3f} ±{(high - low) / 2:.3f}" if low < high else auc_text(ceiling)


def interval_text(low: float | None, high: float | None) -> str:
    """Return the interval as `low–high`, or nothing where an end is missing."""
    return "" if low is None or high is None else f"{low:.4f}–{high:.4f}"


def budget_text(view: RunView) -> str:
    """Return `ε` or, where δ is not zero, `ε, δ = …` as it is shown everywhere."""
    promise = view["promise"]
    return promise["epsilon_text"] + (f", δ = {promise['delta_text']}" if promise["delta"] else "")


def privacy_text(view: RunView) -> str:
    """Return whether the run is private and, if it is not, why."""
    if view["promise"]["private"]:
        return "yes"
    return "no: no noise" if view["promise"]["epsilon"] is None else "no: seeded noise"


def promise_text(epsilon: float, delta: float, private: bool) -> str:
    """Return what a run promises about every record's label, for a reader who knows no mathematics."""
    if math.isinf(epsilon):
        return "No noise was added. The gradients show the labels, and nothing is promised about them."
    if not private:
        return (
            "The noise was drawn from a seed, so whoever knows the seed can take it away again. Nothing is promised; "
            "the same run with secret noise would promise the ε shown here."
        )
    if epsilon == 0:
        return "Nothing that depends on a label crosses the border."
    factor = rounded_up(math.exp(epsilon), 3) if epsilon < 13 else f"e^{rounded_up(epsilon, 4)}"
    slack = f", apart from a slack of δ = {rounded_up(delta, 2)} in probability" if delta else ""
    return (
        "Everything that crosses the border, however it is combined with other knowledge, changes the odds of a "
        f"record’s label by a factor of at most {factor}{slack}."
    )


FEATURES_TEXT = (
    "Nothing is proved about features: embeddings of every record cross the border, and nothing bounds what they "
    "reveal of the features behind them."
)
"""Stands beside the promise, which speaks about labels only, on every page."""


def baseline(views: Sequence[RunView], of: RunView) -> RunView | None:
    """Return the run that a run is measured against: the first finished one on the same data without noise."""
    return next(
        (
            view
            for view in views
            if view["promise"]["epsilon"] is None and view["test"] and view["data_group"] == of["data_group"]
        ),
        None,
    )


def lead(views: Sequence[RunView]) -> str:
    """Return the result in three sentences: is it private, what does it reach, what does it leak."""
    private = [view for view in views if view["promise"]["private"]]
    if not private:
        return "This run is not private." if len(views) == 1 else "None of these runs is private."
    count = f"{len(private)} of these {len(views)} runs are private."
    if len(views) == 1:
        count = "This run is private."
    elif len(private) == len(views):
        count = f"All {len(views)} runs are private."
    elif len(private) == 1:
        count = f"One of these {len(views)} runs is private."
    measured = [view for view in private if view["test"] and view["test"].get("test_auc") is not None]
    if not measured:
        return f"{count} It promises ε = {budget_text(private[0])}." if len(private) == 1 else count
    best = max(measured, key=_test_auc)
    which = "It" if len(private) == 1 else f"The most accurate of them, {best['name']},"
    reference = baseline(views, best)
    without = f" ({auc_text(_test_auc(reference))} without privacy)" if reference else ""
    reach = f"{which} promises ε = {budget_text(best)} and has a test AUC of {auc_text(_test_auc(best))}{without}."
    attack = (best["attacks"] or {}).get("attacks", {}).get("shortest_distance")
    if attack is None:
        return f"{count} {reach}"
    reached = measured_text(attack["auc"], attack["auc_low"], attack["auc_high"])
    return (
        f"{count} {reach} The shortest-distance attack on its transcript reaches {reached}, where 0.5 is guessing and "
        f"{auc_text(best['promise']['ceiling'])} is the most that ε allows whoever reads noisy labels, on average."
    )


def _test_auc(view: RunView) -> float:
    return (view["test"] or {}).get("test_auc") or 0.0
