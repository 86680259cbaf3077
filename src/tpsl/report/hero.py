"""The first screen of a page: the promise as odds, a verdict, two scales, three numbers. Every word and number of it.

Both scales go from guessing (AUC 0.5) to certain (AUC 1). One shows what an attacker reaches without the run, with it,
and in plain split learning, each beside the bound of its own kind of attacker; the other what the model can do, beside
the run without noise on the same data. The three numbers are the total ε, what privacy costs, and the attacker's
advantage: what it reaches with the run less what it reaches without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tpsl.net.messages import LABEL_PARTY
from tpsl.report.run_view import RunView, ShownAttack
from tpsl.report.verdicts import (
    GUESSING,
    Interval,
    Verdict,
    attack_bound_text,
    attack_without_run,
    baseline,
    cost,
    interval,
    promised_bound_of,
    share_kept,
    strongest_attack,
    tested,
    verdict,
    why_untested,
)
from tpsl.report.words import (
    KINDS,
    MISSING,
    bound_text,
    budget_text,
    exposure_text,
    gone_text,
    odds_factor,
    of_vault,
    records_text,
    share_text,
    signed_text,
    spoken,
)

Claim = Literal[
    "total_epsilon",
    "test_auc",
    "auc_lost",
    "share_kept",
    "attack_auc",
    "bound",
    "without_auc",
    "plain_auc",
    "advantage",
]
"""The numbers that a first screen claims, each of which follows from the run's result, findings or ledger."""


@dataclass(frozen=True)
class Fact:
    """A text on the first screen; a claim comes with the number that the text rounds. A command is to be typed."""

    text: str
    claim: Claim | None = None
    value: float | None = None
    command: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar on a scale from guessing to certain. What was not measured is None."""

    name: str
    reached: Fact
    notes: Sequence[Fact] = ()
    low: float | None = None
    high: float | None = None
    start: float | None = None
    """Where the part of the bar begins that is the run's own doing; the part before it was there without the run."""
    bound: float | None = None
    bound_low: float | None = None
    bound_high: float | None = None


@dataclass(frozen=True)
class Card:
    """One of the big numbers: what it is, the number, and what stands below it."""

    of: Literal["promise", "utility", "attack", "features"]
    title: str
    number: Fact
    notes: Sequence[Fact]


@dataclass(frozen=True)
class Hero:
    """The first screen of one run."""

    headline: str
    verdict: Verdict
    """On the page of a feature party, which knows nothing that depends on true labels: what of its features crosses."""
    attack_title: str
    attack: list[Bar]
    utility_title: str
    utility: list[Bar]
    features: list[Bar]
    """For a feature party: what nothing bounds."""
    cards: list[Card]


def hero(view: RunView, views: Sequence[RunView]) -> Hero:
    """Return the first screen of a run among the runs of a page, for the party whose page it is."""
    own, several = view["party"] == LABEL_PARTY, view["classes"] > 2
    pairs, rest = ", mean over pairs of classes", f", mean over {view['classes']} classes, each against the rest"
    return Hero(
        headline=promise_sentence(view),
        verdict=verdict(view, views) if own else Verdict(code="features", text=exposure_text(view)),
        attack_title=f"What an attacker gets of the labels (AUC{pairs if several else ''})",
        attack=_attack_bars(view, views),
        utility_title=f"What the model can do (test AUC{rest if several else ''})",
        utility=_utility_bars(view, views) if own else [],
        features=[] if own else [_features_bar(view)],
        cards=[_promise_card(view), _cost_card(view, views), _advantage_card(view)]
        if own
        else [_features_card(view), _promise_card(view)],
    )


# ---- the promise


def promise_sentence(view: RunView) -> str:
    """Return what a run promises about a label, as odds and with its condition, or why it promises nothing.

    It speaks of all releases of these labels that are known, also of vaults that are gone; e^ε is rounded up.
    """
    promise, total = view["promise"], view["promise"]["total_epsilon"]
    crossed = "crossed" if view["state"] == "finished" else "crosses"
    if promise["epsilon"] is None:
        return f"This run has no noise: what {crossed} the border shows the labels."
    seeded = view["job"]["privacy"].get("noise_seed") is not None
    if seeded:
        return (
            "The noise of this run came from a seed: whoever knows the seed knows the labels, so nothing is promised."
        )
    if total is None or not promise["private"]:
        why = "no noise" if total is None else "seeded noise"
        alone = _odds(promise["epsilon"], f"ε = {promise['epsilon_text']}", promise["delta_text"], promise["delta"])
        return (
            f"Another release of these labels had {why}, so nothing is promised about them. "
            f"What {crossed} in this run alone makes nobody {alone}."
        )
    if promise["large_delta"]:
        return (
            f"This run promises ε = {budget_text(view)}, and δ is above 1/records: expect the promise to fail for at "
            "least one record."
        )
    if total == 0:
        return f"Nothing that depends on a label {crossed} the border: nobody becomes surer of a label (ε = 0)."
    text, slack, delta = f"ε = {promise['total_epsilon_text']}", promise["total_delta_text"], promise["total_delta"]
    if view["gone_vaults"]:
        what = (
            f"Nothing that is known to have been released of these labels, by this run (ε = {promise['epsilon_text']})"
        )
        odds = _odds(total, gone_text(text, view["gone_vaults"]), slack, delta)
        return f"{what} and by others, can make anybody {odds}."
    if share_text(view):
        what = f"Nothing that was released of these labels, by this run (ε = {promise['epsilon_text']}) and by others,"
        return f"{what} can make anybody {_odds(total, f'{text} in all', slack, delta)}."
    odds = _odds(total, text, slack, delta)
    if view["spent_by"] == "run":
        return (
            f"Nothing that {crossed} the border in this run can make anybody {odds}; "
            "other releases of the same labels would add to that."
        )
    return f"Nothing that {crossed} the border can make anybody {odds}."


def _odds(epsilon: float, promised: str, delta_text: str, delta: float) -> str:
    apart = f"; up to a slack of δ = {delta_text} in probability" if delta else ""
    return f"more than {odds_factor(epsilon)} times surer of a label (odds; {promised}{apart})"


# ---- the picture


def _attack_bars(view: RunView, views: Sequence[RunView]) -> list[Bar]:
    """Return what an attacker reaches without the run, with it, and in plain split learning."""
    attack, without = strongest_attack(view), attack_without_run(view)
    if view["promise"]["epsilon"] is None:
        return [*_bar_without(without), _plain_bar("This run, without noise", attack)]
    reference = baseline(views, view)
    plain = _plain_bar("Plain split learning", strongest_attack(reference) if reference else None)
    if attack is None:
        return [*_bars_of_bounds(view), plain]
    notes = [Fact(_bound_note(attack), "bound", attack["bound"])]
    if attack["above_bound"]:
        notes.append(Fact("above its bound by more than chance: run tpsl audit"))
    start = without["auc"] if without else GUESSING
    name = f"With this run: {spoken(attack['name'])}"
    return [*_bar_without(without), _attack_bar(name, attack, "attack_auc", notes, start), plain]


def _bar_without(without: ShownAttack | None) -> list[Bar]:
    if without is None:
        return []
    return [_attack_bar("Without this run: features alone", without, "without_auc", [Fact(_bound_note(without))])]


def _attack_bar(name: str, attack: ShownAttack, claim: Claim, notes: Sequence[Fact], start: float | None = None) -> Bar:
    ends = attack["auc_low"], attack["auc_high"]
    bounds = attack["bound"], attack["bound_low"], attack["bound_high"]
    return Bar(name, _area(attack["auc"], claim), notes, *ends, start, *bounds)


def _area(value: float, claim: Claim | None) -> Fact:
    return Fact(f"{value:.3f}", claim, value)


def _bound_note(attack: ShownAttack) -> str:
    if attack["bound"] is None:
        return "nothing bounds it"
    estimated = "estimated" if (attack["bound_low"] or 0.0) < (attack["bound_high"] or 0.0) else "proved"
    return f"bound {attack_bound_text(attack)} ({KINDS.get(attack['kind'], attack['kind'])}, {estimated})"


def _plain_bar(name: str, attack: ShownAttack | None) -> Bar:
    if attack is None:  # an attack that was not made is a number and no bar
        return Bar(f"{name}: in theory", _area(1.0, "plain_auc"))
    return Bar(f"{name}: measured", _area(attack["auc"], "plain_auc"), start=GUESSING)


def _bars_of_bounds(view: RunView) -> list[Bar]:
    """Return what is known of attackers on a run that was not attacked: a bound for one kind, none for the other."""
    promise, kind, bound = view["promise"], promised_bound_of(view), view["promise"]["ceiling"]
    if promise["epsilon"] == 0:
        return [
            Bar("With this run", _area(GUESSING, None), [Fact("nothing that depends on a label crosses the border")])
        ]
    if not promise["private"]:
        return [Bar("With this run", Fact(MISSING), [Fact("nothing bounds it")])]
    reached = Fact(f"≤ {bound_text(bound, bound, bound)}", "bound", bound)
    notes = [Fact("bound (proved, on average over the noise)")]
    known = Bar(f"With this run: {KINDS[kind]}", reached, notes, bound=bound, bound_low=bound, bound_high=bound)
    return [known, *([] if kind == "statistic" else [_bar_with_features(view)])]


def _bar_with_features(view: RunView) -> Bar:
    if view["party"] != LABEL_PARTY:
        notes = [Fact("by what features tell, which ε does not bound; the label party can measure it")]
    elif view["recorded"]:
        notes = [Fact("by what features tell; not measured yet:"), Fact("tpsl attack RUN", command=True)]
    else:
        notes = [
            Fact("by what features tell; no transcript was recorded to measure it. From the same vault:"),
            Fact("tpsl train JOB --set local.record_transcript=true --out RUN", command=True),
            Fact("tpsl attack RUN", command=True),
        ]
    return Bar("With this run: noisy label and features", Fact("more"), notes)


def _utility_bars(view: RunView, views: Sequence[RunView]) -> list[Bar]:
    reference, area = baseline(views, view), tested(view)
    without = tested(reference) if reference is not None and reference is not view else None
    shown: list[tuple[str, Interval | None, Claim | None]] = [
        ("Without noise", without, None),
        ("This run", area, "test_auc"),
    ]
    return [Bar(name, _area(one.value, claim), (), one.low, one.high, GUESSING) for name, one, claim in shown if one]


def _features_bar(view: RunView) -> Bar:
    return Bar("This run", Fact("no bound is proved" if view["crossed"] else "none cross"))


# ---- the numbers


def _promise_card(view: RunView) -> Card:
    promise = view["promise"]
    title = "ε of any label" if view["spent_by"] == "run" else "Total ε of any label"
    notes = [Fact(f"δ = {promise['total_delta_text']}")] if promise["total_delta"] else []
    if share_text(view):
        notes.append(Fact(share_text(view)))
    notes.append(Fact(_whose_epsilon(view)))
    notes += map(Fact, of_vault(view))
    if view["scratch"]:
        notes.append(Fact("a scratch run: it counts in no total, and nothing of it may leave"))
    number = Fact(f"ε = {promise['total_epsilon_text']}", "total_epsilon", promise["total_epsilon"])
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


def _cost_card(view: RunView, views: Sequence[RunView]) -> Card:
    lost, share, area = cost(view, views), share_kept(view, views), tested(view)
    title = "What privacy costs in test AUC"
    if lost is not None:
        notes = [Fact(f"95 % interval {signed_text(lost.low)} to {signed_text(lost.high)}")]
        if share is not None:
            notes.append(Fact(f"keeps {100 * share:.0f}\u00a0% of the AUC above chance", "share_kept", share))
        return Card(
            of="utility", title=title, number=Fact(signed_text(lost.value), "auc_lost", lost.value), notes=notes
        )
    number, notes = Fact(MISSING, "auc_lost"), []
    if area is None:
        notes = [Fact("not finished" if view["state"] == "unfinished" else why_untested(view))]
    elif view["promise"]["epsilon"] is None:
        notes = [Fact("this is the run without noise")]
    else:
        notes = [
            Fact("no run without noise to compare with. Where both tables are at hand:"),
            Fact("tpsl train JOB --set privacy.mechanism=none --scratch --out runs/plain", command=True),
            Fact("tpsl report RUN runs/plain", command=True),
        ]
    return Card(of="utility", title=title, number=number, notes=notes)


def _advantage_card(view: RunView) -> Card:
    attack, without, title = strongest_attack(view), attack_without_run(view), "What the run gives an attacker"
    if attack is None or without is None:
        why = "not measured" if attack is None else "the attack without the run, ‘no transcript’, was not measured"
        if view["promise"]["epsilon"] == 0:
            why = "nothing that depends on a label crosses the border"
        return Card(of="attack", title=title, number=Fact(MISSING, "advantage"), notes=[Fact(why)])
    reached, before = (interval(one["auc"], one["auc_low"], one["auc_high"]) for one in (attack, without))
    assert reached is not None and before is not None
    gained = reached.less(before)
    notes = [
        Fact("AUC with this run − AUC without"),
        Fact(f"95 % interval {signed_text(gained.low)} to {signed_text(gained.high)}"),
    ]
    number = Fact(f"{'+' if gained.value > 0 else ''}{signed_text(gained.value)}", "advantage", gained.value)
    return Card(of="attack", title=title, number=number, notes=notes)


def _features_card(view: RunView) -> Card:
    crossed, records = view["crossed"], view["train_records"]
    notes = ["you train alone"]
    if crossed:
        notes = ["numbers for each record" if records is None else f"numbers for each of {records_text(records)}"]
        notes.append("nothing is proved about what they reveal")
    number = Fact(f"{crossed:,}" if crossed else "0")
    return Card(of="features", title="Your features that cross", number=number, notes=[Fact(note) for note in notes])
