"""What a page says of one run: the first screen, and the sections below it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from tpsl.metrics import GUESSING
from tpsl.net.messages import LABEL_PARTY
from tpsl.report import charts
from tpsl.report.chart import Cell, Chart
from tpsl.report.hero import Bar, Card, Fact, hero
from tpsl.report.html_parts import facts, figure, intro, section, table
from tpsl.report.markup import Markup, joined, tag
from tpsl.report.run_view import RunView
from tpsl.report.words import (
    MISSING,
    NO_NUMBER,
    auc_text,
    bound_text,
    count_text,
    counted,
    duration_text,
    measured_text,
    of_vault,
    rounded_up,
    significant,
    spoken,
    time_text,
)
from tpsl.run.job import dotted

# ---- the first screen


def first_screen(view: RunView, views: Sequence[RunView]) -> Markup:
    """Return the promise as odds, the verdict, the scales, the big numbers, and who and when."""
    shown = hero(view, views)
    scales = (
        _scale("attack", shown.attack_title, "1 certain", shown.attack),
        _scale("utility", shown.utility_title, "1 perfect", shown.utility),
    )
    return joined(
        tag("p", view.name, class_="of-run") if len(views) > 1 else None,
        tag("p", shown.headline, class_="headline"),
        tag("p", shown.verdict.text, class_="verdict", data_verdict=shown.verdict.code),
        tag("div", *scales, class_="scales"),
        tag("dl", *map(_card, shown.cards), class_="cards"),
        tag("div", _strip(view), class_="strip"),
    )


def _fact(name: str, style: str, fact: Fact) -> Markup:
    style = f"{style} command" if fact.command else style
    return tag(name, fact.text, class_=style, data_claim=fact.claim, data_value=fact.value)


def _card(card: Card) -> Markup:
    notes = (_fact("dd", "note", note) for note in card.notes)
    return tag("div", tag("dt", card.title), _fact("dd", "big", card.number), *notes, class_=f"stat {card.of}")


def _scale(kind: str, title: str, end: str, bars: Sequence[Bar]) -> Markup | None:
    if not bars:
        return None
    marks = tag("p", tag("span", "0.5 guessing"), tag("span", end), class_="ends", aria_hidden="true")
    return tag("div", tag("p", title), tag("ul", *map(_bar, bars)), marks, class_=f"scale {kind}")


def _bar(bar: Bar) -> Markup:
    """Return a bar; what was not measured and has no bound has none."""
    notes = tag("span", *(_fact("span", "note", note) for note in bar.notes), class_="notes")
    return tag(
        "li",
        tag("span", bar.name, class_="who"),
        tag("span", *_spans(bar), class_="track", aria_hidden="true") if bar.auc or bar.bound else None,
        _fact("span", "reached", bar.reached),
        notes if bar.notes else None,
        class_=None if bar.start is None else "own-doing",
    )


def _spans(bar: Bar) -> list[Markup]:
    """Return the parts of a bar: what is allowed, what was there without the run, the run's own, interval, bound."""
    start, bound, area = bar.start, bar.bound, bar.auc
    parts = [_span("allowed", GUESSING, bound.value)] if bound else []
    if area and start != GUESSING:
        parts.append(_span("fill", GUESSING, area.value if start is None else min(start, area.value)))
    if area and start is not None:
        parts.append(_span("fill own", min(start, area.value), area.value))
    if area and area.high - area.low >= 0.004:
        parts.append(_span("whisker", area.low, area.high))
    if bound:
        if bound.low < bound.high:
            parts.append(_span("about-bound", bound.low, bound.high))
        parts.append(tag("span", class_="bound", style=f"left:{_place(bound.value):.2f}%"))
    return parts


def _span(style: str, low: float, high: float) -> Markup:
    return tag("span", class_=style, style=f"left:{_place(low):.2f}%;right:{100 - _place(high):.2f}%")


def _place(area: float) -> float:
    """Return where an AUC stands on a scale from 0.5 to 1; what is worse than guessing stands at its left end."""
    return 100 * min(max((area - GUESSING) / (1 - GUESSING), 0.0), 1.0)


def _strip(view: RunView) -> Markup:
    """Who, what, when, by which program: what a reader asks before believing a page."""
    numbers = ((view.train_records, "training"), (view.test_records, "test"))
    return facts(
        [
            ("Parties", ", ".join([LABEL_PARTY, *view.feature_parties])),
            ("Data", view.data),
            ("Records", ", ".join(f"{number:,} {what}" for number, what in numbers if number is not None)),
            ("ε of the whole vault", rounded_up(view.ledger.epsilon_per_record, 4) if view.ledger else None),
            ("Seed of batches and weights", str(view.job["training"].get("seed", MISSING))),
            ("Trained in", duration_text(view.seconds) if view.seconds else None),
            ("Last written (UTC)", time_text(view.updated) if view.updated else None),
            ("Trained by", view.program),
            ("Page made by", f"tpsl {version('tpsl')}"),
        ]
    )


# ---- the sections


def details(view: RunView, number: int) -> Markup:
    """Return the sections about a run."""
    label, prefix = view.party == LABEL_PARTY, f"run-{number}-"
    whom = (
        "The promise is made for each record, whatever the other records are and whatever the attacker knows already."
    )
    seen = [[*map(Cell, row)] for row in view.sightings]
    return joined(
        section(
            f"{prefix}promise",
            "What was promised",
            intro(whom),
            _promise(view),
            tag("h3", "Who saw what"),
            table("Who saw what", ["What", "Feature party", "Label party"], seen, "wide"),
            tag("h3", "The ledger"),
            *_ledger(view),
        ),
        section(
            f"{prefix}cost", "How good the model is" if label else "What the half has learned", *_utility(view, prefix)
        ),
        section(f"{prefix}attacks", f"What an attacker {'got' if label else 'can get'}", *_attacks(view, prefix)),
        section(f"{prefix}training", "Training" if label else "Speed", *_training(view, prefix)),
        section(f"{prefix}agreement", "The agreement", *_agreement(view)),
    )


def _promise(view: RunView) -> Markup:
    promise, on_labels = view.promise, view.job["method"] != "statistic"
    told = (*of_vault(view), view.features_words, promise.worth_words)
    numbers = facts(
        [
            ("δ", promise.total_delta_text),
            ("Mechanism", promise.mechanism),
            ("Estimator", promise.estimator if on_labels else None),
            ("Draws for each record", str(promise.draws) if on_labels else None),
            ("Epoch whose weights were kept", f"{view.kept_epoch} of {view.epoch}" if view.kept_epoch else None),
            ("Labels in noisy statistics", f"{view.statistic_records:,}" if view.statistic_records else None),
            ("Classes", str(view.classes)),
            ("Version of the halves", view.version),
            ("Starts from", view.origin_words),
            *((name[0].upper() + name[1:], text) for name, text in (view.learned or {}).items()),
        ]
    )
    return tag("div", *(tag("p", text) for text in told if text), numbers, class_="card")


def _ledger(view: RunView) -> list[Markup | None]:
    found = view.ledger
    if not found:
        return [intro(view.ledger_note or "Nothing was released yet.")]
    unit = found.largest_unit
    names = {entry.details["label"]: entry.details["name"] for entry in found.entries if "name" in entry.details}
    rows: list[list[Cell | Markup]] = []
    for entry in found.entries:
        of_label = f" ({names[entry.details['label']]})" if len(names) > 1 else ""
        what = (entry.description if entry.is_release else entry.kind) + of_label
        records = count_text(entry.details["records"]) if "records" in entry.details else ""
        spent = [rounded_up(entry.epsilon, 4), rounded_up(entry.delta, 2)] if entry.is_release else ["", ""]
        texts = [str(entry.sequence), time_text(entry.time), what, records, *spent]
        rows.append([*map(Cell, texts), tag("code", entry.hash[:16])])
    return [
        facts(
            [
                ("Largest ε of any record", rounded_up(found.epsilon_per_record, 4)),
                ("Largest δ of any record", rounded_up(found.delta_per_record, 2)),
                ("Records with a release", f"{found.released_records:,} of {found.records:,}"),
                (f"Largest ε of any {unit.who}", rounded_up(unit.epsilon, 4)) if unit else ("", None),
            ]
        ),
        intro("Head of the hash chain, which fixes the whole history: ", tag("code", found.head)),
        table("Entries of the ledger", ["#", "When (UTC)", "What", "Records", "ε", "δ", "Hash begins"], rows, "wide"),
    ]


def _utility(view: RunView, prefix: str) -> list[Markup | None]:
    told = None
    if view.auc:
        scores = [f"{name} {significant(value)}" for name, value in (view.scores or {}).items() if value is not None]
        numbers = ", ".join([f"test AUC {measured_text(*view.auc)}", *scores])
        told = f"On {counted(view.test_records or 0, 'record')} that it has not seen{_balance(view)}: {numbers}."
    drawn = [charts.calibration(view), charts.precision_recall(view), charts.importance(view)]
    return [intro(told), intro(view.local_head_words), _pair(drawn, prefix)]


def _balance(view: RunView) -> str:
    counts = view.test_curves.records_by_class if view.test_curves else ()
    shares = [f"{100 * count / sum(counts):.1f} % of class {number}" for number, count in enumerate(counts)]
    return f" ({', '.join(shares)})" if shares else ""


def _attacks(view: RunView, prefix: str) -> list[Markup | None]:
    reasons: dict[str, list[str]] = {}
    for name, reason in view.attacks.not_run.items() if view.attacks else ():
        reasons.setdefault(reason, []).append(spoken(name))
    left_out = (
        f"Not run: {', '.join(names)} ({'each' if len(names) > 1 else 'it'} {reason})."
        for reason, names in reasons.items()
    )
    return [
        intro(_about_attacks(view) if view.party == LABEL_PARTY else _about_bound(view)),
        _pair([charts.roc(view), charts.attack_areas(view)], prefix),
        tag("p", " ".join(left_out), class_="small") if reasons else None,
        *map(intro, view.audit_words),
    ]


def _about_bound(view: RunView) -> str:
    area, bound = auc_text(view.promise.closed_form), bound_text(*(view.bound or NO_NUMBER))
    return (
        f"An attacker who scores by what was released alone reaches, on average, an AUC of {area} by the formula "
        f"({spoken(view.promise.attack)}), and {bound} at most. ε bounds how much surer anybody can become, not what "
        "features alone say about a label."
    )


def _about_attacks(view: RunView) -> str:
    found = view.attacks
    if found is None:
        how = "" if view.recorded else "train with --set local.record_transcript=true, then "
        return f"The run was not attacked: {how}tpsl attack RUN fills this section."
    estimated = ""
    if found.predicted_from:
        estimated = f", estimated with true labels from {' and '.join(found.predicted_from)}"
    above = (attack.name for attack in found.made if attack.above_bound)
    return (
        "The label party scores every attack with true labels. Each stands beside the bound of its own kind of "
        "attacker. For an attacker who scores by the noisy label alone that is what ε allows, on average. Gradients "
        "and embeddings also carry what features say about the label, which ε does not bound: for attackers who use "
        f"them the bound is the AUC of noisy label and best prediction from features together{estimated}."
        + "".join(
            f" The {spoken(name)} attack is above its bound by more than chance: this may be a bug." for name in above
        )
    )


def _training(view: RunView, prefix: str) -> list[Markup | None]:
    speed = None
    if view.samples_per_second:
        took = f", {duration_text(view.seconds)} in all" if view.seconds else ""
        speed = f"{count_text(view.samples_per_second)} records in a second{took}."
    return [intro(speed), _pair([charts.curves([view], metric) for metric in charts.METRICS], prefix)]


def _pair(drawn: Sequence[Chart | None], prefix: str) -> Markup | None:
    figures = [figure(chart, prefix) for chart in drawn if chart]
    return tag("div", *figures, class_="pair") if figures else None


def _agreement(view: RunView) -> list[Markup | None]:
    flags = " ".join(f"--set {shlex.quote(f'{key}={setting(value)}')}" for key, value in view.changed.items())
    settings = "\n".join(f"{key}={setting(value)}" for key, value in dotted(view.job).items() if value is not None)
    return [
        intro("The job that both parties hold, without the places of files. Digest: ", tag("code", view.job_digest)),
        intro("What differs from the defaults: ", tag("code", flags)) if flags else None,
        tag("details", tag("summary", "All settings"), tag("pre", tag("code", settings))),
    ]


def setting(value: Any) -> str:
    """Return the value of a key of the job as `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
