"""The report as one HTML file that needs nothing else, not even scripts: text, tables and charts are in it.

A little script switches runs, sorts tables and changes the theme. Without it all runs are shown, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tpsl.files import write_atomically
from tpsl.net.messages import LABEL_PARTY
from tpsl.report import charts
from tpsl.report.chart import Cell
from tpsl.report.html_parts import asset, document, figure, intro, section, table
from tpsl.report.markup import Markup, joined, tag
from tpsl.report.run_sections import badges, curves_of, details, first_screen, group
from tpsl.report.run_table import shown
from tpsl.report.run_view import RunView
from tpsl.report.verdicts import baseline, first_shown, lead, tested_auc
from tpsl.report.version_view import version_rows
from tpsl.report.words import (
    MISSING,
    at_least_text,
    auc_text,
    count_text,
    duration_text,
    interval_text,
    measured_text,
    privacy_text,
    share_text,
    signed_text,
    spoken,
    time_text,
)


def write_page(path: Path, views: Sequence[RunView], *, title: str, about: str = "") -> None:
    """Write the report of these runs; the file is whole or untouched, never half-written.

    All text is escaped, and a content security policy lets the browser run and load nothing but what is in the file.
    Views of the label party hold numbers that depend on true labels: a page of them belongs to the label party.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    # A name that is not Unicode (of a file, say) must not cost the report.
    write_atomically(path, page(views, title=title, about=about).encode("utf-8", errors="replace"))


def page(views: Sequence[RunView], *, title: str, about: str = "", home: str = "") -> str:
    """Return the page of these runs as HTML; `home` is the address of the list of runs that it belongs to, if any."""
    if not views:
        raise ValueError("a report needs at least one run")
    parties = {view["party"] for view in views}
    if len(parties) > 1:
        raise ValueError(f"a report is for one party, not for {' and '.join(sorted(parties))}")
    runs, alone = told_apart(views), len(views) == 1
    first = first_shown(runs)
    order = sorted(range(len(runs)), key=lambda number: number != first)  # without scripts, the first comes first
    (party,) = parties
    body = joined(
        tag("a", "Skip to the report", class_="skip", href="#main"),
        _bar(runs, first, home),
        tag("header", tag("h1", title), tag("p", whose(party), class_="party")),
        tag(
            "main",
            *(tag("div", first_screen(runs[number], runs), class_="hero", data_run=number) for number in order),
            tag("p", about, id="about") if about else None,
            None if alone else section("glance", "At a glance", *_glance(runs, party)),
            section("versions", "Versions", *_versions(runs, party)),
            *(tag("article", *_article(runs[number], number, alone), data_run=number) for number in order),
            None if alone else _together(runs, party),
            id="main",
            tabindex=-1,
        ),
        tag(
            "footer",
            tag("p", "Made by tpsl, transcript private split learning. This page is complete and loads nothing."),
        ),
        tag("div", id="announce", class_="unseen", aria_live="polite"),
    )
    return document(title, body, script=asset("page.js"), style=asset("page.css"))


def told_apart(views: Sequence[RunView]) -> list[RunView]:
    """Return the views with a number after each name that an earlier one has."""
    runs: list[RunView] = []
    for view in views:
        times = sum(earlier["name"] == view["name"] for earlier in views[: len(runs)])
        runs.append({**view, "name": f"{view['name']} ({times + 1})"} if times else view)
    return runs


def whose(party: str) -> str:
    """Return for whom a page is, in words."""
    if party == LABEL_PARTY:
        return "For the label party only: it depends on true labels."
    return f"For the feature party {party}. Nothing here depends on true labels."


def _bar(runs: Sequence[RunView], first: int, home: str) -> Markup:
    mark = tag("a", "‹ All runs", class_="mark", href=home) if home else tag("span", "tpsl", class_="mark")
    options = (tag("option", run["name"], value=at, selected=at == first) for at, run in enumerate(runs))
    chooser = tag(
        "div",
        tag("label", "Run", for_="run"),
        tag("button", "‹", type="button", data_step=-1, aria_label="Previous run"),
        tag("select", *options, id="run"),
        tag("button", "›", type="button", data_step=1, aria_label="Next run"),
        class_="chooser",
        hidden=True,
    )
    theme = tag("button", "Dark", type="button", id="theme", hidden=True)
    return tag("div", mark, chooser if len(runs) > 1 else None, theme, class_="bar")


def _article(view: RunView, number: int, alone: bool) -> list[Markup]:
    return ([] if alone else [tag("h2", view["name"], class_="of-run")]) + [details(view, number, alone=alone)]


def _glance(runs: Sequence[RunView], party: str) -> list[Markup | None]:
    label = party == LABEL_PARTY
    columns = ["Run", "ε", *(["Test AUC", "Attack AUC"] if label else []), "Bound", "Mechanism", "Private"]
    columns += [*(["Cost in AUC", "Audited ε ≥"] if label else []), "Records/s", "Trained in"]
    kept = [
        number
        for number, name in enumerate(columns)
        if not (name == "Audited ε ≥" and not any(run["audit"] for run in runs))
    ]
    rows = [[row[number] for number in kept] for row in (_row(run, at, runs) for at, run in enumerate(runs))]
    notes = (
        "ε: what the records have spent in all. Attack AUC: the strongest attack that was measured. Bound: the most "
        "that attackers of its kind can reach, on average; proved from this run’s own ε, or estimated with true labels "
        "(≈). Cost: against the run without noise on the same data."
        if label
        else "Bound: the most that an attacker of the kind named there can reach, on average, proved from this run’s "
        "own ε. Features that say something about the label add to it."
    )
    return [
        intro(lead(runs)),
        tag("p", "A smaller ε is a stronger promise. AUC 0.5 is guessing, 1 is perfect.", class_="intro small"),
        table("All runs", [columns[number] for number in kept], rows, "sortable wide runs"),
        tag("p", notes, class_="small"),
    ]


def _row(run: RunView, number: int, runs: Sequence[RunView]) -> list[Cell | Markup]:
    promise, test, attack, reference = run["promise"], run["test"] or {}, shown(run), baseline(runs, run)
    area, without = tested_auc(run), tested_auc(reference) if reference and reference is not run else None
    lost = None if area is None or without is None else area - without
    link = tag("a", run["name"], href=f"#run-{number}-promise", data_pick=number)
    unfinished = [] if run["state"] == "finished" else badges(run)[-1:]
    cells: list[Cell | Markup] = [joined(link, *unfinished)]
    delta = [f"δ = {promise['total_delta_text']}"] if promise["total_delta"] else []
    cells.append(Cell(promise["total_epsilon_text"], promise["total_epsilon"], [*delta, *_some(share_text(run))]))
    if run["party"] == LABEL_PARTY:
        ends = interval_text(test.get("test_auc_low"), test.get("test_auc_high"))
        attacked = interval_text(attack["auc_low"], attack["auc_high"])
        cells.append(Cell(auc_text(area), area, _some(ends)))
        cells.append(Cell(auc_text(attack["auc"]), attack["auc"], _some(attacked, spoken(attack["name"] or ""))))
    cells.append(Cell(attack["bound_text"], attack["bound"], _some(attack["bound_of"])))
    cells += [Cell(promise["mechanism"], None, [promise["estimator"]]), Cell(privacy_text(run))]
    if run["party"] == LABEL_PARTY:
        audited = (run["audit"] or {}).get("lower_bound")
        cells.append(Cell(MISSING if lost is None else signed_text(lost, 4), lost))
        cells.append(Cell(at_least_text(audited), audited))
    cells.append(Cell(count_text(run["samples_per_second"]), run["samples_per_second"]))
    return [*cells, Cell(duration_text(run["seconds"]), run["seconds"])]


def _some(*texts: str) -> list[str]:
    return [text for text in texts if text]


def _versions(runs: Sequence[RunView], party: str) -> list[Markup | None]:
    rows, label = version_rows(runs), party == LABEL_PARTY
    if not rows:
        return []
    columns = ["Run", "Version", "Starts from", "Last written (UTC)", "Training records", "ε of its release"]
    columns += ["ε in all", "Noisy hold-out AUC", "Test AUC"] if label else []
    cells = [
        [
            *map(Cell, (row["run"], row["version"], row["starts_from"], time_text(row["updated"]))),
            Cell(count_text(row["train_records"]), row["train_records"]),
            Cell(row["epsilon_text"]),
            *([Cell(row["total_epsilon_text"])] if label else []),
            *(
                [
                    Cell(
                        measured_text(row["validation_auc"], row["validation_auc_low"], row["validation_auc_high"]),
                        row["validation_auc"],
                    ),
                    Cell(auc_text(row["test_auc"]), row["test_auc"]),
                ]
                if label
                else []
            ),
        ]
        for row in rows
    ]
    about = (
        "Runs that start from one another, oldest first. A run that starts from another one has learned from its "
        "labels too: ε in all is the most that any of these records has spent."
    )
    return [intro(about), table("Versions", columns, cells)]


def _together(runs: Sequence[RunView], party: str) -> Markup | None:
    """Return the runs beside one another: what the models reach, the trade-off, the audits, the curves."""
    if party != LABEL_PARTY:
        return None
    groups: dict[str, list[RunView]] = {}
    for run in runs:
        groups.setdefault(run["data_group"], []).append(run)
    drawn = list[Markup | None]()
    for number, same in enumerate(groups.values()):
        levels = {run["promise"]["epsilon"] for run in same if tested_auc(run) is not None} - {None}
        if len(levels) > 1:
            prefix = f"data-{number}-"
            drawn += [figure(charts.trade_off(same, against), prefix) for against in ("epsilon", "attack")]
    about = (
        "Utility against privacy, for each data set. Higher is more useful; further left is more private. Runs of "
        "one ε promise the same, so they stand above one another, however sharp their attacks are."
    )
    pair = tag("div", *drawn, class_="pair")
    parts = [
        section("trade-off", "The trade-off", intro(about), pair) if any(drawn) else None,
        section("curves", "Training", curves_of(runs)),
    ]
    return group("All runs", "measured with true labels", *parts)
