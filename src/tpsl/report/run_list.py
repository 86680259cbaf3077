"""The list of `tpsl ui` as HTML: what runs now, what was spent on the records of each data set, and all runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, TypedDict
from urllib.parse import quote

from tpsl.net.messages import LABEL_PARTY
from tpsl.report import charts
from tpsl.report.chart import Cell
from tpsl.report.html_parts import grouped_table, section
from tpsl.report.markup import Markup, joined, tag
from tpsl.report.page import whose
from tpsl.report.run_table import shown
from tpsl.report.run_view import RunView
from tpsl.report.svg import svg
from tpsl.report.verdicts import is_private, recommended, tested, tested_auc
from tpsl.report.watching import Snapshot, WatchedRun
from tpsl.report.words import (
    MISSING,
    auc_text,
    counted,
    duration_text,
    interval_text,
    of_vault,
    privacy_text,
    rounded_up,
    spoken,
    time_text,
)
from tpsl.run.job import dotted
from tpsl.vault import Spent

_PROBLEMS = 5
_QUIET = timedelta(seconds=60)
"""How long after its last write a run that is not finished is called running."""
_CURVES = ("test_auc", "validation_auc")
"""Which curve of a running run is shown: the first that it has."""


def running(snapshot: Snapshot) -> list[WatchedRun]:
    """Return the runs that are not finished and have written something a short time ago."""
    oldest = (datetime.now(UTC) - _QUIET).isoformat(timespec="seconds")
    return [run for run in snapshot.runs if run.view["state"] != "finished" and (run.written or "") > oldest]


def run_list(snapshot: Snapshot, folder: str, party: str) -> Markup:
    """Return all that changes on the page as runs go on."""
    now, groups = running(snapshot), _groups(snapshot)
    several = f" on {len(groups)} data sets" if len(groups) > 1 else ""
    many = f"{counted(len(snapshot.runs), 'run')}{several}{f', {len(now)} running' if now else ''}."
    problems = _problems(snapshot.problems)
    return joined(
        tag(
            "header",
            tag("h1", f"Runs in {folder}/"),
            tag("p", many if snapshot.runs else "There are no runs here yet. The first one appears here."),
            tag("p", whose(party), class_="party"),
            tag("p", problems, id="about") if problems else None,
        ),
        section("running", "Running now", tag("div", *map(_card, now), class_="tiles") if now else None),
        _spent(spent_on(snapshot)),
        _table(groups, snapshot, now, label=party == LABEL_PARTY) if snapshot.runs else None,
    )


def _groups(snapshot: Snapshot) -> list[list[WatchedRun]]:
    """Return the runs by data set, the newest first."""
    groups: dict[str, list[WatchedRun]] = {}
    for run in sorted(snapshot.runs, key=lambda run: run.written or "", reverse=True):
        groups.setdefault(run.view["data_group"], []).append(run)
    return sorted(groups.values(), key=lambda runs: (runs[0].view["data"], -len(runs)))


def _problems(problems: Sequence[str]) -> str:
    more = len(problems) - _PROBLEMS
    unreadable = "; ".join(problems[:_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
    return f"Not shown: {unreadable}." if problems else ""


# ---- what runs


def _card(run: WatchedRun) -> Markup:
    """Return how far a run is, how fast, how long the rest takes, and its curve so far."""
    view, progress = run.view, run.progress
    drawn = next((chart for metric in _CURVES if (chart := charts.curves([view], metric))), None)
    told = [_epoch(run)]
    if progress:
        early = "at most " if view["job"]["training"].get("patience") else ""
        left = f"{early}{duration_text(progress.seconds_left)} left" if progress.seconds_left is not None else ""
        speed = f"{progress.samples_per_second:,.0f} records/s" if progress.samples_per_second else ""
        told += [f"step {progress.step:,} of {progress.steps:,}", speed, left]
    return tag(
        "article",
        tag("h3", _link(view["name"])),
        tag("progress", max=1, value=f"{_share(run):.3f}", aria_label=f"{view['name']}: how far it is"),
        tag("p", " · ".join(filter(None, told)), class_="small"),
        tag("p", f"{drawn.title}: {drawn.summary}", class_="small") if drawn else None,
        svg(drawn, prefix=f"{run.version}-") if drawn and drawn.series else None,
        class_="card",
    )


def _share(run: WatchedRun) -> float:
    if run.progress and run.progress.steps:
        return run.progress.step / run.progress.steps
    return run.view["epoch"] / (run.view["epochs"] or 1)


def _epoch(run: WatchedRun) -> str:
    epochs = run.view["epochs"]
    now = math.floor(_share(run) * epochs + 1e-9) if run.progress else run.view["epoch"]
    return f"epoch {min(epochs, now + 1):,} of {epochs:,}"


def _link(name: str) -> Markup:
    return tag("a", name, href=f"runs/{quote(name, safe='', errors='replace')}")


# ---- all runs


def _table(
    groups: Sequence[Sequence[WatchedRun]], snapshot: Snapshot, now: Sequence[WatchedRun], label: bool
) -> Markup:
    jobs = {run.view["name"]: dotted(run.view["job"]) for run in snapshot.runs}
    shared = _shared(list(jobs.values()))
    best = _recommended(snapshot)
    names = {run.view["name"] for run in now}
    columns = ["Run", "State", "Written (UTC)", "ε", *(["Test AUC", "Attack AUC"] if label else ["Bound on attacks"])]
    columns += ["Mechanism", "Training records", "Trained in"]

    def row(run: WatchedRun) -> list[Cell | Markup]:
        view = run.view
        # What a search for words finds besides what is shown: the data, and the keys in which jobs differ.
        words = [view["data"], *(f"{key}={value}" for key, value in jobs[view["name"]].items() if key not in shared)]
        link = joined(_link(view["name"]), tag("span", " ".join(words), class_="words", hidden=True))
        state = "running" if view["name"] in names else view["state"]
        notes = [] if state == "finished" else [_epoch(run)]
        cells: list[Cell | Markup] = [link, Cell(state, None, notes), Cell(time_text(run.written)), _epsilon(view)]
        cells += [_area(view, view["name"] in best)] if label else []
        return [*cells, _attack(view, label=label), Cell(view["promise"]["mechanism"]), _records(view), _seconds(view)]

    bodies = [(_heading(runs), [row(run) for run in runs]) for runs in groups]
    return tag("div", grouped_table("All runs", columns, bodies, "sortable wide runs"), id="runs")


def _heading(runs: Sequence[WatchedRun]) -> Markup:
    return joined(runs[0].view["data"], tag("small", counted(len(runs), "run")))


def _epsilon(view: RunView) -> Cell:
    promise, private = view["promise"], privacy_text(view)
    notes = [f"δ = {promise['total_delta_text']}"] if promise["total_delta"] else []
    if promise["total_epsilon"] != promise["epsilon"]:
        notes.append(f"this run: {promise['epsilon_text']}")
    notes += [] if private == "yes" else [private if promise["large_delta"] else "not private"]
    return Cell(promise["total_epsilon_text"], promise["total_epsilon"], notes)


def _area(view: RunView, is_best: bool) -> Cell:
    test = view["test"] or {}
    ends = interval_text(test.get("test_auc_low"), test.get("test_auc_high"))
    notes = [ends, "smallest ε as good as the best" if is_best else ""]
    return Cell(auc_text(tested_auc(view)), tested_auc(view), [note for note in notes if note])


def _attack(view: RunView, *, label: bool) -> Cell:
    attack = shown(view)
    bound = f"{attack['bound_text']}, {attack['bound_of']}"
    if not label:
        return Cell(bound, attack["bound"])
    if attack["name"] is None:
        return Cell(MISSING, None, [f"not attacked; bound {bound}"])
    return Cell(auc_text(attack["auc"]), attack["auc"], [spoken(attack["name"]), f"bound {bound}"])


def _records(view: RunView) -> Cell:
    records = view["train_records"]
    return Cell(MISSING if records is None else f"{records:,}", records)


def _seconds(view: RunView) -> Cell:
    return Cell(duration_text(view["seconds"]), view["seconds"])


def _recommended(snapshot: Snapshot) -> set[str]:
    """Return the names of the runs that a page on one data set would open with, of data sets with several to choose."""
    groups: dict[str, list[RunView]] = {}
    for view in snapshot.views:
        if is_private(view) and tested(view):
            groups.setdefault(view["data_group"], []).append(view)
    found = (recommended(views) for views in groups.values() if len(views) > 1)
    return {view["name"] for view in found if view is not None}


def _shared(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that all jobs have with the same value."""
    first, *others = jobs or [{}]
    missing = object()
    return {name: value for name, value in first.items() if all(other.get(name, missing) == value for other in others)}


# ---- what was spent


class SpentRow(TypedDict):
    """What was released of the records of one data set in all: the most that any one of them has spent."""

    data: str
    runs: int
    """How many runs of the snapshot were trained on them."""
    epsilon_text: str
    delta_text: str
    private: bool
    vaults: list[str]
    notes: list[str]
    """What is to be said of the vaults: some are gone, or cannot be asked, or there are other labels."""


def spent_on(snapshot: Snapshot) -> list[SpentRow]:
    """Return a row for each data set of which the runs have released labels; scratch runs count nowhere."""
    groups: dict[str, list[WatchedRun]] = {}
    for run in snapshot.runs:
        if run.vault and not run.view["scratch"] and (run.view["ledger"] or run.view["ledger_note"]):
            groups.setdefault(run.view["data_group"], []).append(run)
    return sorted((_spent_row(runs) for runs in groups.values()), key=lambda row: (row["data"], -row["runs"]))


def _spent_row(runs: Sequence[WatchedRun]) -> SpentRow:
    views = [run.view for run in runs]
    total = reduce(Spent.joined, map(_total, views))
    notes = [text for view in views for text in (*of_vault(view), view["ledger_note"]) if text]
    return SpentRow(
        data=views[0]["data"],
        runs=len(runs),
        epsilon_text=rounded_up(total.epsilon, 4),
        delta_text=rounded_up(total.delta, 2) if total.delta else "",
        private=total.private,
        vaults=sorted({run.vault for run in runs if run.vault}),
        notes=list(dict.fromkeys(notes)),
    )


def _total(view: RunView) -> Spent:
    promise = view["promise"]
    epsilon = math.inf if promise["total_epsilon"] is None else promise["total_epsilon"]
    return Spent(epsilon, promise["total_delta"], promise["private"])


def _spent(rows: Sequence[SpentRow]) -> Markup | None:
    if not rows:
        return None
    about = (
        "The most that all releases together say about any record’s label, those of runs elsewhere too, as the vaults "
        "know it now."
    )
    tiles = tag("div", *map(_tile, rows), class_="tiles")
    return section("spent", "Total ε of the records", tiles, tag("p", about, class_="small"))


def _tile(row: SpentRow) -> Markup:
    vaults = f"{'Vaults' if len(row['vaults']) > 1 else 'Vault'}: {', '.join(row['vaults'])}."
    notes = [f"δ = {row['delta_text']}" if row["delta_text"] else "", "" if row["private"] else "not private"]
    notes += [f"{counted(row['runs'], 'run')}. {vaults}", *row["notes"]]
    return tag(
        "div",
        tag("h3", row["data"]),
        tag("p", f"ε = {row['epsilon_text']}", class_="epsilon"),
        *(tag("p", note, class_="small") for note in notes if note),
        class_="card",
    )
