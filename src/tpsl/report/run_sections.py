"""What a page says of one run: the first screen, and the sections below it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from tpsl.net.messages import LABEL_PARTY
from tpsl.report import charts
from tpsl.report.chart import Cell
from tpsl.report.hero import Bar, Card, Fact, hero
from tpsl.report.html_parts import facts, figure, intro, section, table
from tpsl.report.markup import Markup, joined, tag
from tpsl.report.run_view import RunView
from tpsl.report.words import (
    MISSING,
    auc_text,
    count_text,
    counted,
    duration_text,
    measured_text,
    of_vault,
    privacy_text,
    share_text,
    significant,
    spent_text,
    spoken,
    time_text,
)
from tpsl.run.job import dotted

# ---- the first screen


def first_screen(view: RunView, views: Sequence[RunView]) -> Markup:
    """Return the promise as odds, the verdict, the scales, the big numbers, and who and when."""
    shown = hero(view, views)
    scales = (
        _scale("features", "What your features give away", ("nothing", "everything"), shown.features),
        _scale("attack", shown.attack_title, ("0.5 guessing", "1 certain"), shown.attack),
        _scale("utility", shown.utility_title, ("0.5 guessing", "1 perfect"), shown.utility),
    )
    return joined(
        tag("p", view["name"], class_="of-run") if len(views) > 1 else None,
        tag("p", shown.headline, class_="headline"),
        tag("p", shown.verdict["text"], class_="verdict", data_verdict=shown.verdict["code"]),
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


def _scale(kind: str, title: str, ends: tuple[str, str], bars: Sequence[Bar]) -> Markup | None:
    if not bars:
        return None
    marks = tag("p", *(tag("span", end) for end in ends), class_="ends", aria_hidden="true")
    rows = tag("ul", *(_bar(bar, bounded=kind != "features") for bar in bars))
    return tag("div", tag("p", title), rows, marks, class_=f"scale {kind}", role="group", aria_label=title)


def _bar(bar: Bar, *, bounded: bool) -> Markup:
    """Return a bar; what was not measured and has no bound has none, but what nothing can bound."""
    reached = bar.reached
    value = None if bar.start is None and reached.claim in ("bound", "plain_auc") else reached.value
    drawn = value is not None or bar.bound is not None
    track = None
    if drawn or not bounded:
        style = "track" if drawn and bounded else "track unbounded"
        track = tag("span", *(_spans(bar, value) if bounded else ()), class_=style, aria_hidden="true")
    notes = tag("span", *(_fact("span", "note", note) for note in bar.notes), class_="notes")
    return tag(
        "li",
        tag("span", bar.name, class_="who"),
        track,
        _fact("span", "reached", reached),
        notes if bar.notes else None,
        class_=None if bar.start is None else "own-doing",
    )


def _spans(bar: Bar, value: float | None) -> list[Markup]:
    """Return the parts of a bar: what is allowed, what was there without the run, the run's own, interval, bound."""
    start, bound, low, high = bar.start, bar.bound, bar.low, bar.high
    parts = [_span("allowed", 0.5, bound)] if bound is not None else []
    if value is not None and start != 0.5:
        parts.append(_span("fill", 0.5, value if start is None else min(start, value)))
    if value is not None and start is not None:
        parts.append(_span("fill own", min(start, value), value))
    if low is not None and high is not None and high - low >= 0.004:
        parts.append(_span("whisker", low, high))
    if bound is not None:
        if bar.bound_low != bar.bound_high:
            parts.append(_span("about-bound", bar.bound_low or bound, bar.bound_high or bound))
        parts.append(tag("span", class_="bound", style=f"left:{_place(bound):.2f}%"))
    return parts


def _span(style: str, low: float, high: float) -> Markup:
    return tag("span", class_=style, style=f"left:{_place(low):.2f}%;right:{100 - _place(high):.2f}%")


def _place(area: float) -> float:
    """Return where an AUC stands on a scale from 0.5 to 1; what is worse than guessing stands at its left end."""
    return 100 * min(max((area - 0.5) / 0.5, 0.0), 1.0)


def _strip(view: RunView) -> Markup:
    """Who, what, when, by which program: what a reader asks before believing a page."""
    found = view["statement"]
    label = view["party"] == LABEL_PARTY
    numbers = ((view["train_records"], "training"), (view["test_records"], "test"))
    stated = (
        "none yet: tpsl vault statement VAULT --certs FOLDER" if label else "none here: ask the label party for one"
    )
    if found:
        newer = found["entries_since"]
        more = f"; {newer:,} newer ledger {'entry' if newer == 1 else 'entries'}" if newer else ""
        when = time_text(found["time"])
        stated = f"{found['file']}, signed by {found['party']} on {when} UTC: at most {found['spent_text']}{more}"
    return facts(
        [
            ("Parties", ", ".join([LABEL_PARTY, *view["feature_parties"]])),
            ("Data", view["data"]),
            ("Records", ", ".join(f"{number:,} {what}" for number, what in numbers if number is not None)),
            ("ε of the whole vault", (view["ledger"] or {}).get("epsilon_text")),
            ("Seed of batches and weights", str(view["job"]["training"].get("seed", MISSING))),
            ("Trained in", duration_text(view["seconds"]) if view["seconds"] else None),
            ("Last written (UTC)", time_text(view["updated"]) if view["updated"] else None),
            ("Trained by", view["program"]),
            ("Page made by", f"tpsl {version('tpsl')}"),
            ("Signed statement", stated),
        ]
    )


# ---- the sections


def details(view: RunView, number: int, *, alone: bool) -> Markup:
    """Return the sections about a run; `alone` if the page has no other, with which its curves would be shown."""
    label, prefix = view["party"] == LABEL_PARTY, f"run-{number}-"
    promised = section(
        f"{prefix}promise",
        "What was promised",
        intro(
            "The promise is made for each record, whatever the other records are and whatever the attacker knows "
            "already."
        ),
        _promise(view),
        tag("h3", "Who saw what"),
        table("Who saw what", ["What", "Feature party", "Label party"], _sightings(view), "wide"),
        tag("h3", "The ledger"),
        *_ledger(view),
    )
    about = "can be handed over: tpsl report RUN --for feature" if label else "of the label party"
    measured = [
        section(f"{prefix}cost", "How good the model is", *_utility(view)),
        section(f"{prefix}attacks", f"What an attacker {'got' if label else 'can get'}", *_attacks(view, prefix)),
        section(f"{prefix}training", "Training" if label else "Speed", *_training(view, prefix, alone)),
    ]
    kept = "stays with the label party"
    return joined(
        group("The promise", about, promised),
        group("Measured with true labels", kept, *measured) if label else joined(*measured),
        section(f"{prefix}agreement", "The agreement", *_agreement(view)),
    )


def group(title: str, note: str, *sections: Markup | None) -> Markup | None:
    """Return sections that are handed over together, or stay together."""
    if not any(sections):
        return None
    return tag("div", tag("p", title, " ", tag("span", note), class_="group-name"), *sections, class_="group")


def badges(view: RunView) -> list[Markup]:
    """Return whether a run is private, and whether it is finished, in a word each."""
    private = privacy_text(view)
    found = [tag("span", "private", class_="badge yes")]
    if private != "yes":
        large = view["promise"]["large_delta"]
        found = [tag("span", private if large else "not private", class_="badge no")]
    if view["state"] == "unfinished":
        how_far = f"unfinished: epoch {view['epoch']} of {view['epochs']}, step {view['step']:,}"
        found.append(tag("span", how_far, class_="badge wait"))
    return found


def _promise(view: RunView) -> Markup:
    promise, origin = view["promise"], view["origin"]
    on_labels = view["job"]["method"] != "statistic"
    own = spent_text(float("inf") if promise["epsilon"] is None else promise["epsilon"], promise["delta"])
    kept = f"{view['kept_epoch']} of {view['epoch']}" if view["kept_epoch"] else None
    started = None
    if origin:
        spent = origin["total_epsilon_text"]
        had = "are in these weights too" if spent is None else f"had spent ε = {spent} in all"
        started = f"{origin['run']}, whose {count_text(origin['train_records'])} records {had}"
    shares = tag("span", f"in all; this run’s release: {own}", class_="share") if share_text(view) else None
    return tag(
        "div",
        tag("h3", view["name"]),
        tag("p", tag("span", f"ε = {promise['total_epsilon_text']}", class_="epsilon"), shares, *badges(view),
            class_="promise-head"),
        tag("p", promise["words"]),
        *(tag("p", text) for text in of_vault(view)),
        tag("p", view["features_words"]),
        tag("p", promise["worth_words"]) if promise["worth_words"] else None,
        facts(
            [
                ("δ", promise["total_delta_text"]),
                ("Mechanism", promise["mechanism"]),
                ("Estimator", promise["estimator"] if on_labels else None),
                ("Draws for each record", str(promise["draws"]) if on_labels else None),
                ("Epoch whose weights were kept", kept),
                ("Labels in noisy statistics", f"{view['statistic_records']:,}" if view["statistic_records"] else None),
                ("Classes", str(view["classes"])),
                ("Starts from", started),
                *((name[0].upper() + name[1:], text) for name, text in view["learned"].items()),
            ]
        ),
        class_="card",
    )  # fmt: skip


def _sightings(view: RunView) -> list[list[Cell]]:
    return [[Cell(row["what"]), Cell(row["feature"]), Cell(row["label"])] for row in view["sightings"]]


def _ledger(view: RunView) -> list[Markup | None]:
    found = view["ledger"]
    if not found:
        return [intro(view["ledger_note"] or "Nothing was released yet.")]
    rows: list[list[Cell | Markup]] = [
        [
            Cell(str(entry["sequence"])),
            Cell(time_text(entry["time"])),
            Cell(entry["what"]),
            Cell("" if entry["records"] is None else f"{entry['records']:,}", entry["records"]),
            Cell(entry["epsilon_text"]),
            Cell(entry["delta_text"]),
            tag("code", entry["hash"][:16]),
        ]
        for entry in found["entries"]
    ]
    return [
        facts(
            [
                ("Vault", found["vault"]),
                ("Largest ε of any record", found["epsilon_text"]),
                ("Largest δ of any record", found["delta_text"]),
                ("Records with a release", f"{found['released_records']:,} of {found['records']:,}"),
                ("Largest ε of any unit", found["unit_text"]),
            ]
        ),
        intro("Head of the hash chain, which fixes the whole history: ", tag("code", found["head"])),
        table("Entries of the ledger", ["#", "When (UTC)", "What", "Records", "ε", "δ", "Hash begins"], rows, "wide"),
    ]


def _utility(view: RunView) -> list[Markup | None]:
    test, head = view["test"] or {}, view["local_head"]
    told = None
    if test.get("test_auc") is not None:
        rest = [
            f"{name} {significant(test[key])}"
            for name, key in (
                ("log loss", "test_log_loss"),
                ("accuracy", "test_accuracy"),
                ("calibration error", "test_calibration_error"),
            )
            if test.get(key) is not None
        ]
        area = measured_text(*(test.get(f"test_auc{end}") for end in ("", "_low", "_high")))
        numbers = ", ".join([f"test AUC {area}", *rest])
        told = f"On {counted(view['test_records'] or 0, 'record')} that it has not seen: {numbers}."
    alone = (
        f"The run also has a local head, trained on true labels, which never leaves the label party: test AUC "
        f"{auc_text(head['test_auc'])}."
        if head
        else None
    )
    return [intro(told), intro(alone)]


def _attacks(view: RunView, prefix: str) -> list[Markup | None]:
    found, label = view["attacks"], view["party"] == LABEL_PARTY
    pair = tag("div", figure(charts.roc(view), prefix), figure(charts.attack_areas(view), prefix), class_="pair")
    reasons: dict[str, list[str]] = {}
    for name, reason in (found or {}).get("not_run", {}).items():
        reasons.setdefault(reason, []).append(spoken(name))
    left_out = (
        f"Not run: {', '.join(names)} ({'each' if len(names) > 1 else 'it'} {reason})."
        for reason, names in reasons.items()
    )
    return [
        intro(_about_attacks(view) if label else _ABOUT_BOUND),
        pair,
        tag("p", " ".join(left_out), class_="small") if reasons else None,
        intro(charts.audit_text(view)) if view["audit"] else None,
        *map(intro, _examined(view)),
    ]


_ABOUT_BOUND = (
    "The bound of an attacker who scores by what was released alone, on average, and what the best such attack reaches "
    "by the formula. ε bounds how much surer anybody can become, not what features alone say about a label."
)


def _about_attacks(view: RunView) -> str:
    found = view["attacks"]
    if found is None:
        how = "tpsl attack RUN" if view["recorded"] else (
            "train with --set local.record_transcript=true, then tpsl attack RUN"
        )  # fmt: skip
        return f"The run was not attacked: {how} fills this section."
    estimated = f", estimated with true labels from {' and '.join(found['predicted_from'])}" if found.get(
        "predicted_from") else ""  # fmt: skip
    above = [name for name, attack in found["attacks"].items() if attack.get("above_ceiling")]
    return (
        "The label party scores every attack with true labels. Each stands beside the bound of its own kind of "
        "attacker. For an attacker who scores by the noisy label alone that is what ε allows, on average. Gradients "
        "and embeddings also carry what features say about the label, which ε does not bound: for attackers who use "
        f"them the bound is the AUC of noisy label and best prediction from features together{estimated}."
        + "".join(
            f" The {spoken(name)} attack is above its bound by more than chance: this may be a bug." for name in above
        )
    )


def _examined(view: RunView) -> list[str]:
    """Return what the audit's examination and record and replay say."""
    found, replay, told = view["examination"], view["replay"], list[str]()
    if found and found["passed"]:
        told.append(f"The audit looked at {', '.join(found['parts'])} and found nothing.")
    elif found:
        told.append(f"The audit FAILED. {'. '.join(found['accusations'])}.")
    if replay and replay["passed"]:
        told.append(
            f"Record and replay: {replay['flipped']:,} true labels flipped, the noisy ones kept; all "
            f"{replay['bytes']:,} bytes of transcript and weights stayed the same."
        )
    elif replay:
        changed = len(replay.get("differences") or ()) or "some"
        told.append(f"Record and replay FAILED: {changed} files changed when true labels were flipped.")
    return told


def _training(view: RunView, prefix: str, alone: bool) -> list[Markup | None]:
    speed = None
    if view["samples_per_second"]:
        took = f", {duration_text(view['seconds'])} in all" if view["seconds"] else ""
        speed = f"{count_text(view['samples_per_second'])} records in a second{took}."
    drawn = curves_of([view], prefix) if alone else None
    return [intro(speed), drawn]


def curves_of(views: Sequence[RunView], prefix: str = "") -> Markup | None:
    """Return a chart for each metric that runs have after epochs."""
    metrics = charts.metrics_of(views)
    shown = [figure(charts.curves(views, metric), prefix) for metric in metrics]
    return tag("div", *shown, class_="pair") if shown else None


def _agreement(view: RunView) -> list[Markup | None]:
    sections: list[Markup] = []
    for name, content in view["job"].items():
        values = dotted(content) if isinstance(content, dict) else {name: content}
        shown = [(spoken(key), _setting(value)) for key, value in values.items() if value is not None]
        if shown:
            sections += [tag("h3", spoken(name).capitalize()), facts(shown)]
    flags = " ".join(f"--set {key}={_setting(value)}" for key, value in view["changed"].items())
    changed = tag("p", "What differs from the defaults: ", tag("code", flags), class_="intro") if flags else None
    return [
        tag("p", "The job that both parties hold, without the places of files. Its digest: ",
            tag("code", view["job_digest"]), class_="intro"),
        changed,
        tag("details", tag("summary", "All settings"), *sections),
    ]  # fmt: skip


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
