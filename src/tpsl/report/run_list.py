"""The list of `tpsl ui` as HTML: what runs now, what was spent on the records of each data set, and all runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from urllib.parse import quote

from tpsl.net.messages import LABEL_PARTY
from tpsl.report import charts
from tpsl.report.chart import Cell
from tpsl.report.html_parts import section, table
from tpsl.report.markup import Markup, joined, tag
from tpsl.report.page import whose
from tpsl.report.run_sections import setting
from tpsl.report.run_table import run_cells
from tpsl.report.run_view import RunView
from tpsl.report.svg import svg
from tpsl.report.verdicts import recommended
from tpsl.report.watching import Snapshot, WatchedRun
from tpsl.report.words import counted, duration_text, of_vault, rounded_up, time_text
from tpsl.vault import Spent

_PROBLEMS = 5
_QUIET = timedelta(seconds=60)
"""How long after its last write a run that is not finished is called running."""
_CURVES = ("test_auc", "validation_auc")
"""Which curve of a running run is shown: the first that it has."""
_COLUMNS = (
    *("Run", "State", "Written (UTC)", "ε", "Private", "Test AUC", "Attack AUC", "Bound", "Mechanism"),
    "Training records",
)
_OF_LABELS = ("Test AUC", "Attack AUC")


def running(snapshot: Snapshot) -> list[WatchedRun]:
    """Return the runs that are not finished and have written something a short time ago."""
    oldest = (datetime.now(UTC) - _QUIET).isoformat(timespec="seconds")
    return [run for run in snapshot.runs if run.view.state != "finished" and (run.written or "") > oldest]


def run_list(snapshot: Snapshot, folder: str, party: str) -> Markup:
    """Return all that changes on the page as runs go on."""
    now, groups = running(snapshot), _groups(snapshot.runs)
    several = f" on {len(groups)} data sets" if len(groups) > 1 else ""
    many = f"{counted(len(snapshot.runs), 'run')}{several}{f', {len(now)} running' if now else ''}."
    more = len(snapshot.problems) - _PROBLEMS
    unreadable = "; ".join(snapshot.problems[:_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
    return joined(
        tag(
            "header",
            tag("h1", f"Runs in {folder}/"),
            tag("p", many if snapshot.runs else "There are no runs here yet. The first one appears here."),
            tag("p", whose(party), class_="party"),
            tag("p", f"Not shown: {unreadable}.", id="about") if unreadable else None,
        ),
        section("running", "Running now", tag("div", *map(_card, now), class_="tiles") if now else None),
        _spent(spent_on(snapshot)),
        tag("div", *(_table(group, now, label=party == LABEL_PARTY) for group in groups), id="runs"),
    )


def _groups(runs: Iterable[WatchedRun]) -> list[list[WatchedRun]]:
    """Return the runs by data set, the newest first."""
    groups: dict[str, list[WatchedRun]] = {}
    for run in sorted(runs, key=lambda run: run.written or "", reverse=True):
        groups.setdefault(run.view.data_group, []).append(run)
    return sorted(groups.values(), key=lambda runs: (runs[0].view.data, -len(runs)))


def _link(name: str) -> Markup:
    return tag("a", name, href=f"runs/{quote(name, safe='', errors='replace')}")


def _card(run: WatchedRun) -> Markup:
    """Return how far a run is, how fast, how long the rest takes, and its curve so far."""
    view, progress = run.view, run.progress
    drawn = next((chart for metric in _CURVES if (chart := charts.curves([view], metric))), None)
    told = [_epoch(run)]
    if progress:
        early = "at most " if view.job["training"].get("patience") else ""
        left = f"{early}{duration_text(progress.seconds_left)} left" if progress.seconds_left is not None else ""
        speed = f"{progress.samples_per_second:,.0f} records/s" if progress.samples_per_second else ""
        told += [f"step {progress.step:,} of {progress.steps:,}", speed, left]
    return tag(
        "article",
        tag("h3", _link(view.name)),
        tag("progress", max=1, value=f"{_done(run):.3f}", aria_label=f"{view.name}: how far it is"),
        tag("p", " · ".join(filter(None, told)), class_="small"),
        tag("p", f"{drawn.title}: {drawn.summary}", class_="small") if drawn else None,
        svg(drawn, prefix=f"{run.version}-") if drawn and drawn.series else None,
        class_="card",
    )


def _done(run: WatchedRun) -> float:
    if run.progress and run.progress.steps:
        return run.progress.step / run.progress.steps
    return run.view.epoch / (run.view.epochs or 1)


def _epoch(run: WatchedRun) -> str:
    epochs = run.view.epochs
    now = math.floor(_done(run) * epochs + 1e-9) if run.progress else run.view.epoch
    return f"epoch {min(epochs, now + 1):,} of {epochs:,}"


def _table(group: Sequence[WatchedRun], now: Sequence[WatchedRun], *, label: bool) -> Markup:
    """Return the runs on one data set; where several can be compared, the page's choice among them is marked."""
    views = [run.view for run in group]
    best = recommended(views) if sum(view.private and view.auc is not None for view in views) > 1 else None
    columns = [column for column in _COLUMNS if label or column not in _OF_LABELS]

    def row(run: WatchedRun) -> list[Cell | Markup]:
        view, cells = run.view, run_cells(run.view)
        # What a search for words finds besides what is shown: the data, and what differs from the defaults.
        words = [view.data, *(f"{key}={setting(value)}" for key, value in view.changed.items())]
        state = "running" if run in now else view.state
        cells["State"] = Cell(state, None, [] if state == "finished" else [_epoch(run)])
        cells["Written (UTC)"] = Cell(time_text(run.written))
        if view is best:
            area = cells["Test AUC"]
            cells["Test AUC"] = Cell(area.text, area.value, [*area.notes, "smallest ε as good as the best"])
        link = joined(_link(view.name), tag("span", " ".join(words), class_="words", hidden=True))
        return [link, *(cells[column] for column in columns[1:])]

    about = joined(views[0].data, " ", tag("small", counted(len(group), "run")))
    drawn = table(f"Runs on {views[0].data}", columns, [row(run) for run in group], "sortable wide runs")
    return tag("section", tag("h2", about), drawn)


# ---- what was spent


@dataclass(frozen=True)
class SpentRow:
    """What was released of the records of one data set in all: the most that any one of them has spent."""

    data: str
    runs: int
    """How many runs of the snapshot were trained on them."""
    total: Spent
    vaults: list[str]
    notes: list[str]
    """What is to be said of the vaults: some are gone, or cannot be asked, or there are other labels."""


def spent_on(snapshot: Snapshot) -> list[SpentRow]:
    """Return a row for each data set of which the runs have released labels; scratch runs count nowhere."""
    counted_runs = (
        run for run in snapshot.runs if run.vault and not run.view.scratch and (run.view.ledger or run.view.ledger_note)
    )
    rows = []
    for group in _groups(counted_runs):
        views = [run.view for run in group]
        notes = (text for view in views for text in (*of_vault(view), view.ledger_note) if text)
        total, vaults = reduce(Spent.joined, map(_total, views)), sorted({run.vault for run in group if run.vault})
        rows.append(SpentRow(views[0].data, len(group), total, vaults, list(dict.fromkeys(notes))))
    return rows


def _total(view: RunView) -> Spent:
    promise = view.promise
    epsilon = math.inf if promise.total_epsilon is None else promise.total_epsilon
    return Spent(epsilon, promise.total_delta, promise.private)


def _spent(rows: Sequence[SpentRow]) -> Markup | None:
    if not rows:
        return None
    about = (
        "The most that all releases together say about any record’s label, those of runs elsewhere too, as the vaults "
        "know it now."
    )
    return section(
        "spent",
        "Total ε of the records",
        tag("div", *map(_tile, rows), class_="tiles"),
        tag("p", about, class_="small"),
    )


def _tile(row: SpentRow) -> Markup:
    delta = f"δ = {rounded_up(row.total.delta, 2)}" if row.total.delta else ""
    vaults = f"{'Vaults' if len(row.vaults) > 1 else 'Vault'}: {', '.join(row.vaults)}."
    notes = [delta, "" if row.total.private else "not private", f"{counted(row.runs, 'run')}. {vaults}", *row.notes]
    return tag(
        "div",
        tag("h3", row.data),
        tag("p", f"ε = {rounded_up(row.total.epsilon, 4)}", class_="epsilon"),
        *(tag("p", note, class_="small") for note in notes if note),
        class_="card",
    )
