"""The first screen of a page: a sentence, a picture of two scales, three numbers. All words and numbers are made here.

Both scales go from guessing (AUC 0.5) to certain (AUC 1). On one stands what an attacker gets, beside the ceiling of
this run's own ε, so that two runs of one ε look equally private however sharp their attacks are; on the other stands
what the model can do, beside the run without noise on the same data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from tpsl.report.run_view import RunView
from tpsl.report.words import (
    MISSING,
    baseline,
    budget_text,
    exposure_text,
    praised,
    records_text,
    share_text,
    shown_attack,
    tested_auc,
)
from tpsl.transport.peers import LABEL_PARTY

Claim = Literal["total_epsilon", "test_auc", "accuracy_lost", "attack_auc", "ceiling"]
"""The numbers that a first screen claims, each of which can be found in the run's result, findings or ledger."""


class Fact(TypedDict):
    """A text on the first screen; a claim comes with the number that the text rounds."""

    text: str
    claim: Claim | None
    value: float | None


class Bar(TypedDict):
    """One bar on a scale from guessing to certain. What was not measured is None."""

    name: str
    text: str
    value: float | None
    low: float | None
    high: float | None
    ceiling: float | None
    """Where the most that may be reached is bounded."""


class Card(TypedDict):
    """One of the big numbers: what it is, the number, and what stands below it."""

    of: Literal["promise", "utility", "attack", "limit", "features"]
    title: str
    number: Fact
    notes: list[Fact]


class Hero(TypedDict):
    """The first screen of one run."""

    headline: str
    attack: list[Bar]
    utility: list[Bar]
    features: list[Bar]
    """For a feature party: what nothing bounds."""
    cards: list[Card]


def hero(view: RunView, views: Sequence[RunView]) -> Hero:
    """Return the first screen of a run among the runs of a page, for the party whose page it is."""
    own = view["party"] == LABEL_PARTY
    return Hero(
        headline=_label_headline(view, views) if own else _feature_headline(view),
        attack=_attack_bars(view, views),
        utility=_utility_bars(view, views) if own else [],
        features=[] if own else [_features_bar(view)],
        cards=[_promise_card(view), _utility_card(view, views), _attack_card(view)]
        if own
        else [_features_card(view), _promise_card(view), _attack_card(view)],
    )


def first_shown(views: Sequence[RunView]) -> int:
    """Return the run that a page shows first: the one that its text praises, else the first that promises something."""
    best = praised(views)
    promising = (number for number, view in enumerate(views) if view["promise"]["private"])
    return views.index(best) if best is not None else next(promising, 0)


# ---- the sentence


_PLAIN = "Plain split learning gives away every label."
_TELLING = {
    "shortest_distance": "what its gradients tell of labels",
    "likelihood": "what its noisy labels tell",
    "statistic": "what its noisy statistic tells of labels",
}
"""What of a run speaks of labels, by the attack that tables show."""


def _label_headline(view: RunView, views: Sequence[RunView]) -> str:
    promised = _promised(view)
    if view["state"] == "unfinished":
        return f"{promised} It is not finished: epoch {view['epoch']} of {view['epochs']}."
    if not view["promise"]["private"] or view["promise"]["large_delta"]:
        return promised
    kept = _kept_text(view, views)
    return f"{_PLAIN} {promised[:-1]}{f' and {kept}' if kept else ''}."


def _feature_headline(view: RunView) -> str:
    return f"{exposure_text(view)} {_promised(view)}"


def _promised(view: RunView) -> str:
    """Return what a run holds an attacker to, or why it promises nothing, as one sentence."""
    promise = view["promise"]
    if promise["epsilon"] is None:
        return "This run has no noise: it gives away the labels."
    if promise["total_epsilon"] is None:
        return "Another release of these labels had no noise: nothing is promised about them."
    if not promise["private"]:
        return "The noise of this run came from a seed: nothing is promised about the labels."
    if promise["large_delta"]:
        return f"This run promises ε = {budget_text(view)}: expect it to fail for at least one record."
    if promise["epsilon"] == 0:
        return "In this run nothing that depends on a label crosses the border."
    alone = " alone" if share_text(view) else ""
    return f"This run{alone} caps {_TELLING[promise['attack']]} at {_up(promise['ceiling'])}."


_GUESSING = "no better than guessing"
_NOTHING = 0.005
"""What is kept of the accuracy where it is shown as 0 %."""


def _kept_text(view: RunView, views: Sequence[RunView]) -> str:
    area, share = tested_auc(view), _share_kept(view, views)
    if share is not None:
        if share < _NOTHING:
            return f"its model is {_GUESSING}"
        return "keeps all of the accuracy" if share >= 0.995 else f"keeps {_percent(share)} of the accuracy"
    return "" if area is None else f"reaches a test AUC of {area:.3f}"


# ---- the picture


def _attack_bars(view: RunView, views: Sequence[RunView]) -> list[Bar]:
    promise, found, reference = view["promise"], _measured_attack(view), baseline(views, view)
    plain = _measured_attack(reference) if reference is not None else None
    reached = plain["auc"] if plain else None
    bars = [_bar("Plain split learning", 1.0 if reached is None else reached, "" if plain else "in theory")]
    if reference is view:
        return bars if plain else [_bar("This run", 1.0, "in theory")]
    ceiling = promise["ceiling"] if promise["private"] else None
    own = _bar("This run", None, "no limit" if ceiling is None else f"at most {_up(ceiling)}", ceiling=ceiling)
    if found:
        limit = "" if ceiling is None else f"(limit {_up(ceiling)})"
        measured = _bar("This run", found["auc"], limit, ceiling=ceiling)
        own = {**measured, "low": found["auc_low"], "high": found["auc_high"]}
    return [*bars, own]


def _measured_attack(view: RunView) -> dict[str, Any] | None:
    """Return what the attack that tables show has found; None where it was not run, or could not be scored."""
    found = shown_attack(view)
    return found if found is not None and found["auc"] is not None else None


def _utility_bars(view: RunView, views: Sequence[RunView]) -> list[Bar]:
    reference = baseline(views, view)
    shown = [("Without privacy", reference)] if reference is not None else []
    if reference is not view:
        shown.append(("This run", view))
    bars: list[Bar] = []
    for name, run in shown:
        area, test = tested_auc(run), run["test"] or {}
        if area is not None:
            bars.append({**_bar(name, area), "low": test.get("test_auc_low"), "high": test.get("test_auc_high")})
    return bars


def _features_bar(view: RunView) -> Bar:
    return _bar("This run", None, "no limit is proved") if view["crossed"] else _bar("This run", 0.5, "none cross")


def _bar(name: str, value: float | None, note: str = "", *, ceiling: float | None = None) -> Bar:
    text = " ".join(part for part in ("" if value is None else f"{value:.3f}", note) if part)
    return Bar(name=name, text=text, value=value, low=None, high=None, ceiling=ceiling)


# ---- the numbers


def _promise_card(view: RunView) -> Card:
    promise = view["promise"]
    title = "ε of any label" if view["spent_by"] == "run" else "Total ε of any label"
    number = _fact(f"ε = {promise['total_epsilon_text']}", "total_epsilon", promise["total_epsilon"])
    notes = [_fact(f"δ = {promise['total_delta_text']}")] if promise["total_delta"] else []
    if share_text(view):
        notes.append(_fact(share_text(view)))
    notes.append(_fact(_whose_epsilon(view)))
    if view["over_vaults"] is not None:
        notes.append(_fact(f"over all known vaults: ε = {view['over_vaults']['epsilon_text']}"))
    return Card(of="promise", title=title, number=number, notes=notes)


def _whose_epsilon(view: RunView) -> str:
    if not view["promise"]["private"]:
        return "not private"
    by = {
        "ledger": "by the ledger of its vault",
        "note": "as the run noted it at its end",
        "run": "this run alone",
    }
    return by[view["spent_by"]]


def _utility_card(view: RunView, views: Sequence[RunView]) -> Card:
    area, reference, test = tested_auc(view), baseline(views, view), view["test"] or {}
    number = _fact(MISSING if area is None else f"{area:.3f}", "test_auc", area)
    notes = [_fact(_why_no_test(view))] if area is None else []
    notes.extend(_interval(test.get("test_auc_low"), test.get("test_auc_high")))
    if area is not None and reference is None:
        notes.append(_fact("no run without noise here to compare with", "accuracy_lost"))
    elif area is not None and reference is not None and reference is not view:
        without = tested_auc(reference) or 0.0
        change = f"{abs(without - area):.3f} {'less' if area <= without else 'more'} than without privacy"
        notes.append(_fact(change, "accuracy_lost", without - area))
        share = _share_kept(view, views)
        if share is not None and share < 0.995:
            notes.append(_fact(_GUESSING if share < _NOTHING else f"{_percent(share)} of the way from guessing"))
    return Card(of="utility", title="Test AUC of the model", number=number, notes=notes)


def _why_no_test(view: RunView) -> str:
    if view["job"]["training"]["exchange"] == "labels":
        return "the model is the feature party’s, and it is tested there"
    if view["state"] == "unfinished":
        return f"not finished: epoch {view['epoch']} of {view['epochs']}"
    if view["local_head"] is not None:
        return "only the local head was trained, on true labels"
    return "its test records are all of one class" if view["test_records"] else "no test records"


def _attack_card(view: RunView) -> Card:
    promise, found = view["promise"], _measured_attack(view)
    limit = _up(promise["ceiling"]) if promise["private"] else None
    if found is None:
        why = "not attacked yet" if view["party"] == LABEL_PARTY else "AUC that ε allows anybody, on average"
        why = "there is nothing to attack" if promise["epsilon"] == 0 else why
        number = _fact(f"≤ {limit}" if limit else "none", "ceiling", promise["ceiling"] if limit else None)
        return Card(of="limit", title="Limit of any attack", number=number, notes=[_fact(why, "attack_auc")])
    number = _fact(f"{found['auc']:.3f}", "attack_auc", found["auc"])
    notes = [_fact("nothing limits it", "ceiling")]
    if limit:
        notes = [_fact(f"limit {limit} at ε = {promise['epsilon_text']}", "ceiling", promise["ceiling"])]
    notes.extend(_interval(found["auc_low"], found["auc_high"]))
    if limit and found["auc"] > promise["ceiling"]:
        by_chance = "it limits the average, not a sample"
        notes.append(_fact("above it by more than chance: a bug?" if found.get("above_ceiling") else by_chance))
    return Card(of="attack", title="Attack AUC", number=number, notes=notes)


def _features_card(view: RunView) -> Card:
    crossed, records = view["crossed"], view["train_records"]
    notes = ["you train alone"]
    if crossed:
        notes = ["numbers for each record" if records is None else f"numbers for each of {records_text(records)}"]
        notes.append("nothing is proved about what they reveal")
    number = _fact(f"{crossed:,}" if crossed else "0")
    return Card(of="features", title="Your features that cross", number=number, notes=[_fact(note) for note in notes])


def _share_kept(view: RunView, views: Sequence[RunView]) -> float | None:
    """Return how much of the distance from guessing to the run without noise a run reaches."""
    area, reference = tested_auc(view), baseline(views, view)
    without = tested_auc(reference) if reference is not None and reference is not view else None
    if area is None or without is None or without <= 0.5:
        return None
    return max(area - 0.5, 0.0) / (without - 0.5)


def _interval(low: float | None, high: float | None) -> list[Fact]:
    return [] if low is None or high is None else [_fact(f"95 % interval {low:.3f}–{high:.3f}")]


def _fact(text: str, claim: Claim | None = None, value: float | None = None) -> Fact:
    return Fact(text=text, claim=claim, value=value)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\u00a0%"


def _up(area: float) -> str:
    """Return an AUC that bounds something with three decimals, never below it."""
    return f"{math.ceil(round(area * 1000, 6)) / 1000:.3f}"
