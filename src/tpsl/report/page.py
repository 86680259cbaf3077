"""The report as one HTML file that needs nothing else, not even scripts: text, tables and charts are in it.

Of several runs it opens with one; the others are below it, to be opened. A little script sorts the table of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tpsl.files import write_atomically
from tpsl.net.messages import LABEL_PARTY
from tpsl.report import charts
from tpsl.report.chart import Cell
from tpsl.report.html_parts import document, figure, intro, section, table
from tpsl.report.markup import Markup, joined, tag
from tpsl.report.run_sections import details, first_screen
from tpsl.report.run_table import run_cells
from tpsl.report.run_view import RunView
from tpsl.report.verdicts import first_shown, lead, verdict


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
    parties = {view.party for view in views}
    if len(parties) > 1:
        raise ValueError(f"a report is for one party, not for {' and '.join(sorted(parties))}")
    runs, alone = told_apart(views), len(views) == 1
    first = first_shown(runs)
    order = sorted(range(len(runs)), key=lambda number: number != first)
    (party,) = parties
    body = joined(
        tag("a", "Skip to the report", class_="skip", href="#main"),
        tag("nav", tag("a", "‹ All runs", href=home)) if home else None,
        tag("header", tag("h1", title), tag("p", whose(party), class_="party")),
        tag(
            "main",
            tag("div", first_screen(runs[first], runs), class_="hero"),
            tag("p", about, id="about") if about else None,
            *([] if alone else [section("glance", "At a glance", *_glance(runs, party)), _trade_off(runs)]),
            *(_run(runs, number, opened=number == first) for number in order),
            id="main",
            tabindex=-1,
        ),
        tag(
            "footer",
            tag("p", "Made by tpsl, transcript private split learning. This page is complete and loads nothing."),
        ),
    )
    return document(title, body, scripts=[] if alone else ["page.js"])


def _run(runs: Sequence[RunView], number: int, *, opened: bool) -> Markup:
    """Return all about one of the runs; those that the page does not open with have their first screen there."""
    view, about = runs[number], details(runs[number], number)
    if len(runs) == 1:
        return tag("article", about)
    place = tag("div", None if opened else first_screen(view, runs), id=f"run-{number}", class_="hero")
    summary = tag("summary", tag("h2", view.name), tag("p", verdict(view, runs).text, class_="small"))
    return tag("article", tag("details", summary, place, about, open=opened, class_="run"))


def told_apart(views: Sequence[RunView]) -> list[RunView]:
    """Return the views with a number after each name that an earlier one has."""
    runs: list[RunView] = []
    for view in views:
        times = sum(earlier.name == view.name for earlier in views[: len(runs)])
        runs.append(replace(view, name=f"{view.name} ({times + 1})") if times else view)
    return runs


def whose(party: str) -> str:
    """Return for whom a page is, in words."""
    if party == LABEL_PARTY:
        return "For the label party only: it depends on true labels."
    return f"For the feature party {party}. Nothing here depends on true labels."


def _glance(runs: Sequence[RunView], party: str) -> list[Markup | None]:
    label = party == LABEL_PARTY
    columns = ["Run", "ε", *(["Test AUC", "Attack AUC"] if label else []), "Bound", "Mechanism", "Private"]
    columns += ["Cost in AUC"] if label else []
    columns += ["Audited ε ≥"] if any(run.audited_epsilon is not None for run in runs) else []
    columns += ["Records/s", "Trained in"]
    notes = (
        "ε: what the records have spent in all. Attack AUC: the strongest attack that was measured. Bound: the most "
        "that attackers of its kind can reach, on average; proved from this run’s own ε, or estimated with true labels "
        "(≈). Cost: against the run without noise on the same data."
        if label
        else "Bound: the most that an attacker of the kind named there can reach, on average, proved from this run’s "
        "own ε. Features that say something about the label add to it."
    )
    rows: list[list[Cell | Markup]] = []
    for number, run in enumerate(runs):
        cells = run_cells(run, runs)
        link = joined(tag("a", run.name, href=f"#run-{number}"), *(tag("small", note) for note in cells["Run"].notes))
        if run.starts_from:
            link = joined(link, tag("small", f"starts from {run.starts_from}"))
        rows.append([link, *(cells[column] for column in columns[1:])])
    return [
        intro(lead(runs)),
        tag("p", "A smaller ε is a stronger promise. AUC 0.5 is guessing, 1 is perfect.", class_="intro small"),
        table("All runs", columns, rows, "sortable wide runs"),
        tag("p", notes, class_="small"),
    ]


def _trade_off(runs: Sequence[RunView]) -> Markup | None:
    """Return utility against privacy for each data set of which there are runs with more than one ε."""
    groups: dict[str, list[RunView]] = {}
    for run in runs:
        groups.setdefault(run.data_group, []).append(run)
    drawn = list[Markup | None]()
    for number, same in enumerate(groups.values()):
        levels = {run.promise.epsilon for run in same if run.auc is not None} - {None}
        if len(levels) > 1:
            drawn += [figure(charts.trade_off(same, of), f"data-{number}-") for of in ("epsilon", "attack")]
    about = (
        "Utility against privacy, for each data set. Higher is more useful; further left is more private. Runs of "
        "one ε promise the same, so they stand above one another, however sharp their attacks are."
    )
    return (
        section("trade-off", "The trade-off", intro(about), tag("div", *drawn, class_="pair")) if any(drawn) else None
    )
