"""What runs come to: the strongest attack on a run, what privacy cost it, which run to look at first, and a verdict.

The first screen, the tables and the list of runs all take these from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypedDict

from tpsl.net.messages import LABEL_PARTY
from tpsl.report.run_view import RunView, ShownAttack
from tpsl.report.words import (
    auc_text,
    bound_text,
    budget_text,
)

GUESSING = 0.5
"""The AUC of a coin, with any number of classes."""


class Interval(NamedTuple):
    """A number with its 95 % confidence interval; without one both ends are the number."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= value <= self.high

    def less(self, other: Interval) -> Interval:
        """Return the difference; its interval is that of independent numbers, too wide for AUCs of the same records."""
        margin = math.hypot(self.high - self.low, other.high - other.low) / 2
        difference = self.value - other.value
        return Interval(difference, difference - margin, difference + margin)


def interval(value: float | None, low: float | None, high: float | None) -> Interval | None:
    """Return a number with its interval; None where there is no number."""
    return None if value is None else Interval(value, value if low is None else low, value if high is None else high)


def tested(view: RunView) -> Interval | None:
    """Return the AUC of a run's model on test records, if it was tested."""
    return interval(*((view["test"] or {}).get(f"test_auc{end}") for end in ("", "_low", "_high")))


def tested_auc(view: RunView) -> float | None:
    """Return the AUC of a run's model on test records without its interval."""
    found = tested(view)
    return None if found is None else found.value


def is_private(view: RunView) -> bool:
    """Whether a run may simply be called private: secret noise in every release, and no large δ."""
    return view["promise"]["private"] and not view["promise"]["large_delta"]


def is_guessing(view: RunView) -> bool:
    """Whether the interval of a run's test AUC reaches 0.5."""
    area = tested(view)
    return area is not None and area.low <= GUESSING


# ---- attacks


def strongest_attack(view: RunView) -> ShownAttack | None:
    """Return the attack with the largest AUC of those that use the run, with the bound of its kind of attacker."""
    return _largest(view, of_features=False)


def attack_without_run(view: RunView) -> ShownAttack | None:
    """Return the attack with the largest AUC of those that use features alone and nothing of the run."""
    return _largest(view, of_features=True)


def _largest(view: RunView, *, of_features: bool) -> ShownAttack | None:
    attacks = (view["attacks"] or {}).get("attacks", {})
    found = [
        (attack["auc"], name)
        for name, attack in attacks.items()
        if attack["auc"] is not None and (attack.get("scored_by") == "features") == of_features
    ]
    return _shown(view, max(found)[1], attacks[max(found)[1]]) if found else None


def _shown(view: RunView, name: str, attack: dict[str, Any]) -> ShownAttack:
    # Whoever has the seed of the noise subtracts it: nothing bounds that attacker.
    seeded = view["job"]["privacy"].get("noise_seed") is not None
    bound = [None if seeded else attack.get(f"ceiling{end}") for end in ("", "_low", "_high")]
    return ShownAttack(
        name=name,
        auc=attack["auc"],
        auc_low=attack["auc_low"],
        auc_high=attack["auc_high"],
        kind=attack.get("scored_by", ""),
        bound=bound[0],
        bound_low=bound[1],
        bound_high=bound[2],
        above_bound=bool(attack.get("above_ceiling")),
    )


def attack_bound_text(attack: ShownAttack) -> str:
    """Return the bound of an attack's kind of attacker as it is shown."""
    return bound_text(attack["bound"], attack["bound_low"], attack["bound_high"])


def promised_bound_of(view: RunView) -> str:
    """Return the kind of attacker whom the bound of the promise is for."""
    return "statistic" if view["promise"]["attack"] == "statistic" else "noisy label"


# ---- what privacy costs


def baseline(views: Sequence[RunView], of: RunView) -> RunView | None:
    """Return the run that a run is measured against: the first finished one on the same data without noise."""
    return next(
        (
            view
            for view in views
            if view["promise"]["epsilon"] is None and tested(view) and view["data_group"] == of["data_group"]
        ),
        None,
    )


def cost(view: RunView, views: Sequence[RunView]) -> Interval | None:
    """Return the test AUC that a run has less than the run without noise; None where either was not tested."""
    reference = baseline(views, view)
    area, without = tested(view), tested(reference) if reference is not None and reference is not view else None
    return None if area is None or without is None else without.less(area)


def share_kept(view: RunView, views: Sequence[RunView]) -> float | None:
    """Return how much of the AUC above chance of the run without noise a run has."""
    area, reference = tested_auc(view), baseline(views, view)
    without = tested_auc(reference) if reference is not None and reference is not view else None
    if area is None or without is None or without <= GUESSING:
        return None
    return max(area - GUESSING, 0.0) / (without - GUESSING)


# ---- which run


def recommended(views: Sequence[RunView]) -> RunView | None:
    """Return the private run of the smallest total ε whose test-AUC interval holds the best test AUC.

    The best is that of the private runs on the data of the first of them. Runs that are no better than guessing count
    only where all are. None if no private run was tested.
    """
    candidates = [view for view in views if is_private(view) and tested(view)]
    candidates = [view for view in candidates if view["data_group"] == candidates[0]["data_group"]]
    candidates = [view for view in candidates if not is_guessing(view)] or candidates
    best = max((tested_auc(view) or 0.0 for view in candidates), default=0.0)
    return min((view for view in candidates if _holds(view, best)), key=_by_epsilon, default=None)


def _holds(view: RunView, area: float) -> bool:
    found = tested(view)
    return found is not None and found.holds(area)


def _by_epsilon(view: RunView) -> tuple[float, ...]:
    """Order by the total ε, then by the run's own ε; of equal ones the more accurate comes first."""
    promise = view["promise"]
    total, own = (math.inf if value is None else value for value in (promise["total_epsilon"], promise["epsilon"]))
    return total, own, -(tested_auc(view) or 0.0)


def first_shown(views: Sequence[RunView]) -> int:
    """Return the run that a page opens with: the recommended one, else the first that promises something."""
    best = recommended(views)
    promising = (number for number, view in enumerate(views) if view["promise"]["private"])
    return views.index(best) if best is not None else next(promising, 0)


def smaller_epsilon(view: RunView, views: Sequence[RunView]) -> RunView | None:
    """Return the run of the smallest ε below a run's own whose test-AUC interval holds that run's AUC, if any."""
    area, own = tested_auc(view), view["promise"]["epsilon"]
    if area is None or own is None:
        return None
    candidates = (
        other
        for other in views
        if is_private(other)
        and other["data_group"] == view["data_group"]
        and (other["promise"]["epsilon"] or 0.0) < own
        and not is_guessing(other)
        and _holds(other, area)
    )
    return min(candidates, key=lambda other: other["promise"]["epsilon"] or 0.0, default=None)


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


class Verdict(TypedDict):
    """What a run comes to, as a code and as a sentence; `features` is for a feature party: what of its own crosses."""

    code: VerdictCode
    text: str


def verdict(view: RunView, views: Sequence[RunView]) -> Verdict:
    """Return what a run of the label party comes to among the runs of a page."""
    if view["state"] == "unfinished":
        return Verdict(code="unfinished", text=f"Not finished: epoch {view['epoch']} of {view['epochs']}.")
    area = tested(view)
    if not view["promise"]["private"]:
        reached = "" if area is None else f" Its model reaches a test AUC of {area.value:.3f}."
        return Verdict(code="not private", text=f"Not private.{reached}")
    if area is None:
        return Verdict(code="untested", text=f"No test AUC: {why_untested(view)}.")
    if is_guessing(view):
        interval = f"{area.low:.3f}–{area.high:.3f}"
        return Verdict(
            code="guessing",
            text=f"The model is no better than guessing: the 95 % interval of its test AUC, {interval}, reaches 0.5.",
        )
    smaller = smaller_epsilon(view, views)
    if smaller is not None:
        return Verdict(
            code="smaller epsilon",
            text=f"ε = {smaller['promise']['epsilon_text']} would do as well: the interval of {smaller['name']} holds "
            f"this run’s test AUC, {area.value:.3f}.",
        )
    return _verdict_on_cost(view, views, area)


def _verdict_on_cost(view: RunView, views: Sequence[RunView], area: Interval) -> Verdict:
    lost, share = cost(view, views), share_kept(view, views)
    if lost is None:
        text = f"The model reaches a test AUC of {area.value:.3f}; what privacy costs it is not known."
        return Verdict(code="no comparison", text=text)
    if lost.low <= 0:
        text = f"Privacy costs no AUC that {view['test_records'] or 0:,} test records can show."
        return Verdict(code="costs nothing", text=text)
    kept = "" if share is None else f": the model keeps {100 * share:.0f}\u00a0% of the AUC above chance"
    return Verdict(code="costs", text=f"Privacy costs {lost.value:.3f} AUC{kept}.")


def why_untested(view: RunView) -> str:
    """Return why a run has no test AUC."""
    if view["party"] != LABEL_PARTY:
        return "test metrics stay with the label party"
    if view["job"]["training"]["exchange"] == "labels":
        return "the feature party has the model and tests it"
    if view["local_head"] is not None:
        return "only the local head was trained, on true labels"
    if not view["test_records"]:
        return "there are no test records"
    evaluated = (view["test"] or {}).get("test_log_loss") is not None
    return "all test records are of one class" if evaluated else "not evaluated yet: tpsl label evaluate RUN"


def lead(views: Sequence[RunView]) -> str:
    """Return how many of several runs are private, and which has the smallest ε that is as good as the best."""
    best, private = recommended(views), sum(map(is_private, views))
    count = f"{private or 'None'} of these {len(views)} runs {'are' if private > 1 else 'is'} private."
    if best is None:
        return count
    return (
        f"{count} The smallest ε whose interval holds the best test AUC is that of {best['name']}, which promises "
        f"ε = {budget_text(best)} and has a test AUC of {auc_text(tested_auc(best))}."
    )
