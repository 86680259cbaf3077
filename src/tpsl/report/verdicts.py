"""What runs come to: what privacy cost each, which run to look at first, and a verdict.

The first screen, the tables and the list of runs all take these from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tpsl.metrics import GUESSING
from tpsl.net.messages import LABEL_PARTY
from tpsl.report.run_view import Interval, RunView
from tpsl.report.words import auc_text


def baseline(view: RunView, views: Sequence[RunView]) -> RunView | None:
    """Return the run that a run is measured against: the first tested one on the same data without noise, not itself.

    None for a run without noise that is the first.
    """
    plain = (
        other
        for other in views
        if other.promise.epsilon is None and other.auc is not None and other.data_group == view.data_group
    )
    found = next(plain, None)
    return None if found is view else found


def cost(view: RunView, views: Sequence[RunView]) -> Interval | None:
    """Return the test AUC that a run has less than the run without noise; None where either was not tested."""
    reference = baseline(view, views)
    without = reference.auc if reference is not None else None
    return None if view.auc is None or without is None else without.less(view.auc)


def share_kept(view: RunView, views: Sequence[RunView]) -> float | None:
    """Return how much of the AUC above chance of the run without noise a run has."""
    reference = baseline(view, views)
    if view.auc is None or reference is None or reference.auc is None or reference.auc.value <= GUESSING:
        return None
    return max(view.auc.value - GUESSING, 0.0) / (reference.auc.value - GUESSING)


# ---- which run


def recommended(views: Sequence[RunView]) -> RunView | None:
    """Return the private run of the smallest total ε whose test-AUC interval holds the best test AUC.

    The best is that of the private runs on the data of the first of them. Runs that are no better than guessing count
    only where all are. None if no private run was tested.
    """
    found = [(view, view.auc) for view in views if view.private and view.auc is not None]
    found = [(view, area) for view, area in found if view.data_group == found[0][0].data_group]
    found = [(view, area) for view, area in found if not view.guessing] or found
    best = max((area.value for _, area in found), default=0.0)

    def order(one: tuple[RunView, Interval]) -> tuple[float, ...]:
        """By the total ε, then by the run's own ε; of equal ones the more accurate comes first."""
        promise = one[0].promise
        total, own = (math.inf if value is None else value for value in (promise.total_epsilon, promise.epsilon))
        return total, own, -one[1].value

    return min(((view, area) for view, area in found if area.holds(best)), key=order, default=(None,))[0]


def first_shown(views: Sequence[RunView]) -> int:
    """Return the run that a page opens with: the recommended one, else the first that promises something."""
    best = recommended(views)
    promising = (number for number, view in enumerate(views) if view.promise.private)
    return views.index(best) if best is not None else next(promising, 0)


def smaller_epsilon(view: RunView, views: Sequence[RunView]) -> RunView | None:
    """Return the run of the smallest ε below a run's own whose test-AUC interval holds that run's AUC, if any."""
    area, own = view.auc, view.promise.epsilon
    if area is None or own is None:
        return None
    candidates = [
        (other.promise.epsilon or 0.0, number)
        for number, other in enumerate(views)
        if other.private and other.data_group == view.data_group and not other.guessing
        if other.auc is not None and other.auc.holds(area.value) and (other.promise.epsilon or 0.0) < own
    ]
    return views[min(candidates)[1]] if candidates else None


# ---- in a sentence

VerdictCode = Literal[
    "unfinished",
    "not private",
    "untested",
    "guessing",
    "smaller epsilon",
    "costs",
    "costs nothing",
    "no comparison",
    "features",
]


class Verdict(NamedTuple):
    """What a run comes to, as a code and as a sentence; `features` is for a feature party: what of its own crosses."""

    code: VerdictCode
    text: str


def verdict(view: RunView, views: Sequence[RunView]) -> Verdict:
    """Return what a run comes to among the runs of a page, for the party whose page it is."""
    if view.party != LABEL_PARTY:
        return Verdict("features", _exposure(view))
    if view.state == "unfinished":
        return Verdict("unfinished", f"Not finished: epoch {view.epoch} of {view.epochs}.")
    area = view.auc
    if not view.promise.private:
        reached = "" if area is None else f" Its model reaches a test AUC of {area.value:.3f}."
        return Verdict("not private", f"Not private.{reached}")
    if area is None:
        return Verdict("untested", f"No test AUC: {why_untested(view)}.")
    if view.guessing:
        ends = f"{area.low:.3f}–{area.high:.3f}"
        return Verdict(
            "guessing", f"The model is no better than guessing: the 95 % interval of its test AUC, {ends}, reaches 0.5."
        )
    smaller = smaller_epsilon(view, views)
    if smaller is not None:
        return Verdict(
            "smaller epsilon",
            f"ε = {smaller.promise.epsilon_text} would do as well: the interval of {smaller.name} holds this run’s "
            f"test AUC, {area.value:.3f}.",
        )
    lost, share = cost(view, views), share_kept(view, views)
    if lost is None:
        return Verdict(
            "no comparison",
            f"The model reaches a test AUC of {area.value:.3f}; what privacy costs it is not known.",
        )
    if lost.low <= 0:
        return Verdict("costs nothing", f"Privacy costs no AUC that {view.test_records or 0:,} test records can show.")
    kept = "" if share is None else f": the model keeps {100 * share:.0f}\u00a0% of the AUC above chance"
    return Verdict("costs", f"Privacy costs {lost.value:.3f} AUC{kept}.")


def _exposure(view: RunView) -> str:
    if view.crossed is None:
        return "None of your features crosses the border: you train alone."
    return (
        f"Of your features, {view.crossed:,} numbers for each record cross the border, and nothing is proved about "
        "what they reveal."
    )


def why_untested(view: RunView) -> str:
    """Return why a run of the label party has no test AUC."""
    if view.state == "unfinished":
        return "not finished"
    if view.job["training"]["exchange"] == "labels":
        return "the feature party has the model and tests it"
    if view.local_head_words:
        return "only the local head was trained, on true labels"
    if not view.test_records:
        return "there are no test records"
    evaluated = (view.scores or {}).get("log loss") is not None
    return "all test records are of one class" if evaluated else "not evaluated yet: tpsl label evaluate RUN"


def lead(views: Sequence[RunView]) -> str:
    """Return how many of several runs are private, and which has the smallest ε that is as good as the best."""
    best, private = recommended(views), sum(view.private for view in views)
    count = f"{private or 'None'} of these {len(views)} runs {'are' if private > 1 else 'is'} private."
    if best is None:
        return count
    return (
        f"{count} The smallest ε whose interval holds the best test AUC is that of {best.name}, which promises "
        f"ε = {best.budget} and has a test AUC of {auc_text(best.auc and best.auc.value)}."
    )
