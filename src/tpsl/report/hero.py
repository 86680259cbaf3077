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

from tpsl.metrics import GUESSING
from tpsl.net.messages import LABEL_PARTY
from tpsl.report.run_view import Attack, Interval, RunView
from tpsl.report.verdicts import Verdict, baseline, cost, share_kept, verdict, why_untested
from tpsl.report.words import (
    KINDS,
    MISSING,
    bound_text,
    gone_text,
    odds_factor,
    of_vault,
    records_text,
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
    """One bar on a scale from guessing to certain. What was not measured is None, and has no bar."""

    name: str
    reached: Fact
    notes: Sequence[Fact] = ()
    auc: Interval | None = None
    """What was measured."""
    start: float | None = None
    """Where the part of the bar begins that is the run's own doing; the part before it was there without the run."""
    bound: Interval | None = None


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
    cards: list[Card]


def hero(view: RunView, views: Sequence[RunView]) -> Hero:
    """Return the first screen of a run among the runs of a page, for the party whose page it is."""
    own, several = view.party == LABEL_PARTY, view.classes > 2
    pairs, rest = ", mean over pairs of classes", f", mean over {view.classes} classes, each against the rest"
    return Hero(
        headline=promise_sentence(view),
        verdict=verdict(view, views),
        attack_title=f"What an attacker gets of the labels (AUC{pairs if several else ''})",
        attack=_attack_bars(view, views),
        utility_title=f"What the model can do (test AUC{rest if several else ''})",
        utility=_utility_bars(view, views) if own else [],
        cards=[_promise_card(view), _cost_card(view, views), _advantage_card(view)]
        if own
        else [_features_card(view), _promise_card(view)],
    )


# ---- the promise


def promise_sentence(view: RunView) -> str:
    """Return what a run promises about a label, as odds and with its condition, or why it promises nothing.

    It speaks of all releases of these labels that are known, also of vaults that are gone; e^ε is rounded up.
    """
    promise, total = view.promise, view.promise.total_epsilon
    crossed = "crossed" if view.state == "finished" else "crosses"
    if promise.epsilon is None:
        return f"This run has no noise: what {crossed} the border shows the labels."
    if promise.seeded:
        return (
            "The noise of this run came from a seed: whoever knows the seed knows the labels, so nothing is promised."
        )
    if total is None or not promise.private:
        why = "no noise" if total is None else "seeded noise"
        alone = _odds(promise.epsilon, f"ε = {promise.epsilon_text}", promise.delta_text, promise.delta)
        return (
            f"Another release of these labels had {why}, so nothing is promised about them. "
            f"What {crossed} in this run alone makes nobody {alone}."
        )
    if promise.large_delta:
        return (
            f"This run promises ε = {view.budget}, and δ is above 1/records: expect the promise to fail for at "
            "least one record."
        )
    if total == 0:
        return f"Nothing that depends on a label {crossed} the border: nobody becomes surer of a label (ε = 0)."
    text, slack, delta = f"ε = {promise.total_epsilon_text}", promise.total_delta_text, promise.total_delta
    if view.gone_vaults:
        what = f"Nothing that is known to have been released of these labels, by this run (ε = {promise.epsilon_text})"
        odds = _odds(total, gone_text(text, view.gone_vaults), slack, delta)
        return f"{what} and by others, can make anybody {odds}."
    if view.own_share:
        what = f"Nothing that was released of these labels, by this run (ε = {promise.epsilon_text}) and by others,"
        return f"{what} can make anybody {_odds(total, f'{text} in all', slack, delta)}."
    odds = _odds(total, text, slack, delta)
    if view.spent_by == "run":
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
    attack, without = view.attack, view.attack_without_run
    bars = []
    if without is not None:
        notes = [Fact(_bound_note(without))]
        bars.append(_measured("Without this run: features alone", without, "without_auc", notes))
    if view.promise.epsilon is None:
        return [*bars, _plain_bar("This run, without noise", attack)]
    reference = baseline(view, views)
    plain = _plain_bar("Plain split learning", reference.attack if reference else None)
    if attack is None:
        return [*_bars_of_bounds(view), plain]
    notes = [Fact(_bound_note(attack), "bound", attack.bound and attack.bound.value)]
    if attack.above_bound:
        notes.append(Fact("above its bound by more than chance: run tpsl audit"))
    start = without.auc.value if without else GUESSING
    return [*bars, _measured(f"With this run: {spoken(attack.name)}", attack, "attack_auc", notes, start), plain]


def _measured(name: str, attack: Attack, claim: Claim, notes: Sequence[Fact], start: float | None = None) -> Bar:
    return Bar(name, _area(attack.auc.value, claim), notes, attack.auc, start, attack.bound)


def _area(value: float, claim: Claim | None) -> Fact:
    return Fact(f"{value:.3f}", claim, value)


def _bound_note(attack: Attack) -> str:
    if attack.bound is None:
        return "nothing bounds it"
    estimated = "estimated" if attack.bound.low < attack.bound.high else "proved"
    return f"bound {bound_text(*attack.bound)} ({KINDS.get(attack.kind, attack.kind)}, {estimated})"


def _plain_bar(name: str, attack: Attack | None) -> Bar:
    if attack is None:
        return Bar(f"{name}: in theory", _area(1.0, "plain_auc"))
    return Bar(f"{name}: measured", _area(attack.auc.value, "plain_auc"), (), Interval.at(attack.auc.value), GUESSING)


def _bars_of_bounds(view: RunView) -> list[Bar]:
    """Return what is known of attackers on a run that was not attacked: a bound for one kind, none for the other."""
    promise, bound = view.promise, Interval.at(view.promise.ceiling)
    if promise.epsilon == 0:
        nothing = [Fact("nothing that depends on a label crosses the border")]
        return [Bar("With this run", _area(GUESSING, None), nothing, Interval.at(GUESSING))]
    if not promise.private:
        return [Bar("With this run", Fact(MISSING), [Fact("nothing bounds it")])]
    reached = Fact(f"≤ {bound_text(*bound)}", "bound", bound.value)
    notes = [Fact("bound (proved, on average over the noise)")]
    known = Bar(f"With this run: {KINDS[promise.bound_of]}", reached, notes, bound=bound)
    if promise.bound_of == "statistic":
        return [known]
    notes = [Fact("by what features tell, which ε does not bound; only the label party can measure it")]
    if view.party == LABEL_PARTY:
        recording = "tpsl train JOB --set local.record_transcript=true --out RUN"
        notes = [Fact("by what features tell; not measured yet:")]
        notes += [Fact(command, command=True) for command in ([] if view.recorded else [recording])]
        notes.append(Fact("tpsl attack RUN", command=True))
    return [known, Bar("With this run: noisy label and features", Fact("more"), notes)]


def _utility_bars(view: RunView, views: Sequence[RunView]) -> list[Bar]:
    reference = baseline(view, views)
    shown: list[tuple[str, Interval | None, Claim | None]] = [
        ("Without noise", reference.auc if reference else None, None),
        ("This run", view.auc, "test_auc"),
    ]
    return [Bar(name, _area(area.value, claim), (), area, GUESSING) for name, area, claim in shown if area]


# ---- the numbers


def _promise_card(view: RunView) -> Card:
    promise = view.promise
    by = {"ledger": "by the ledger of its vault", "note": "as the run noted it at its end", "run": "this run alone"}
    notes = [
        f"δ = {promise.total_delta_text}" if promise.total_delta else "",
        view.own_share,
        by[view.spent_by] if promise.private else "not private",
        *of_vault(view),
        "a scratch run: it counts in no total, and nothing of it may leave" if view.scratch else "",
    ]
    title = "ε of any label" if view.spent_by == "run" else "Total ε of any label"
    number = Fact(f"ε = {promise.total_epsilon_text}", "total_epsilon", promise.total_epsilon)
    return Card("promise", title, number, [Fact(note) for note in notes if note])


def _cost_card(view: RunView, views: Sequence[RunView]) -> Card:
    lost, share, title = cost(view, views), share_kept(view, views), "What privacy costs in test AUC"
    if lost is not None:
        notes = [Fact(f"95 % interval {signed_text(lost.low)} to {signed_text(lost.high)}")]
        if share is not None:
            notes.append(Fact(f"keeps {100 * share:.0f}\u00a0% of the AUC above chance", "share_kept", share))
        return Card("utility", title, Fact(signed_text(lost.value), "auc_lost", lost.value), notes)
    if view.auc is None:
        notes = [Fact(why_untested(view))]
    elif view.promise.epsilon is None:
        notes = [Fact("this is the run without noise")]
    else:
        notes = [
            Fact("no run without noise to compare with. Where both tables are at hand:"),
            Fact("tpsl train JOB --set privacy.mechanism=none --scratch --out runs/plain", command=True),
            Fact("tpsl report RUN runs/plain", command=True),
        ]
    return Card("utility", title, Fact(MISSING, "auc_lost"), notes)


def _advantage_card(view: RunView) -> Card:
    attack, without, title = view.attack, view.attack_without_run, "What the run gives an attacker"
    if attack is None or without is None:
        why = "not measured" if attack is None else "the attack without the run, ‘no transcript’, was not measured"
        if view.promise.epsilon == 0:
            why = "nothing that depends on a label crosses the border"
        return Card("attack", title, Fact(MISSING, "advantage"), [Fact(why)])
    gained = attack.auc.less(without.auc)
    notes = [
        Fact("AUC with this run − AUC without"),
        Fact(f"95 % interval {signed_text(gained.low)} to {signed_text(gained.high)}"),
    ]
    number = Fact(f"{'+' if gained.value > 0 else ''}{signed_text(gained.value)}", "advantage", gained.value)
    return Card("attack", title, number, notes)


def _features_card(view: RunView) -> Card:
    crossed, records = view.crossed, view.train_records
    notes = ["you train alone"]
    if crossed:
        notes = ["numbers for each record" if records is None else f"numbers for each of {records_text(records)}"]
        notes.append("nothing is proved about what they reveal")
    number = Fact(f"{crossed:,}" if crossed else "0")
    return Card("features", "Your features that cross", number, [Fact(note) for note in notes])
