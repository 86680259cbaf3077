"""The runs of a folder as a list: a few numbers of each, what the jobs differ in, and what was spent on the records.

It is what the run browser is sent each time something changes, so it is small: curves, ledgers and attacks of a run are
in its view, which is fetched when somebody looks at the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tpsl.report.run_table import shown, summary
from tpsl.report.run_view import RunView
from tpsl.report.spent import spent_on
from tpsl.report.verdicts import is_private, recommended, tested
from tpsl.report.watching import Snapshot, WatchedRun
from tpsl.report.words import privacy_text, spoken
from tpsl.training.job import dotted

_PROBLEMS = 5
_CURVES = ("test_auc", "validation_auc")
"""Which curve of a running run is shown: the first that it has."""


def run_list(snapshot: Snapshot, folder: str, party: str) -> dict[str, Any]:
    """Return all that the list shows, JSON-able.

    `job` are the fields that all jobs share; each run's own `job` are the others. What is unknown is left out.
    """
    jobs = [dotted(run.view["job"]) for run in snapshot.runs]
    shared, chosen = _shared(jobs), _recommended(snapshot)
    return {
        "title": f"Runs in {folder}/",
        "about": _problems(snapshot.problems),
        "party": party,
        "job": shared,
        "runs": [
            {
                **_row(run, {name: value for name, value in job.items() if name not in shared}),
                "recommended": run.view["name"] in chosen,
            }
            for run, job in zip(snapshot.runs, jobs, strict=True)
        ],
        "spent": spent_on(snapshot),
    }


def _row(run: WatchedRun, job: Mapping[str, Any]) -> dict[str, Any]:
    view, promise, attack = run.view, run.view["promise"], shown(run.view)
    row = {
        **summary(view),
        "version": run.version,
        "data": view["data"],
        "data_group": view["data_group"],
        "updated": run.written,
        "epsilon_text": promise["epsilon_text"],
        "total_epsilon_text": promise["total_epsilon_text"],
        "total_delta_text": promise["total_delta_text"] if promise["total_delta"] else None,
        "privacy": privacy_text(view),
        "attack_text": attack["name"] and spoken(attack["name"]),
        "bound_text": f"{attack['bound_text']}, {attack['bound_of']}",
        "train_records": view["train_records"],
        "test_records": view["test_records"],
        "seconds": view["seconds"],
        "of_epochs": view["epochs"],
        "step": view["step"],
        "program": view["program"],
        "starts_from": view["origin"] and view["origin"]["run"],
        "job": job,
        **(_running(run) if view["state"] != "finished" else {}),
    }
    return {name: value for name, value in row.items() if value is not None}


def _recommended(snapshot: Snapshot) -> set[str]:
    """Return the names of the runs that a page on one data set would open with, of data sets with several to choose."""
    groups: dict[str, list[RunView]] = {}
    for view in snapshot.views:
        if is_private(view) and tested(view):
            groups.setdefault(view["data_group"], []).append(view)
    found = (recommended(views) for views in groups.values() if len(views) > 1)
    return {view["name"] for view in found if view is not None}


def _running(run: WatchedRun) -> dict[str, Any]:
    """Return how far a run is that is not finished, and its curve so far."""
    points = {
        name: [
            [entry["epoch"], *(entry.get(name + end) for end in ("", "_low", "_high"))]
            for entry in run.view["curves"]
            if entry.get(name) is not None
        ]
        for name in _CURVES
    }
    shown = next((name for name in _CURVES if points[name]), None)
    return {
        **(asdict(run.progress) if run.progress else {}),
        **({"curve": points[shown], "curve_of": shown} if shown else {}),
        "may_stop_early": bool(run.view["job"]["training"].get("patience")),
    }


def _shared(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that all jobs have with the same value."""
    first, *others = jobs or [{}]
    missing = object()
    return {name: value for name, value in first.items() if all(other.get(name, missing) == value for other in others)}


def _problems(problems: Sequence[str]) -> str:
    more = len(problems) - _PROBLEMS
    unreadable = "; ".join(problems[:_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
    return f"Not shown: {unreadable}." if problems else ""
