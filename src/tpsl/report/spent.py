"""What all runs on the same data have spent together, and which vaults say so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import TypedDict

from tpsl.report.run_view import RunView
from tpsl.report.watching import Snapshot, WatchedRun
from tpsl.report.words import of_vault, rounded_up
from tpsl.vault import Spent


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
    return sorted((_row(runs) for runs in groups.values()), key=lambda row: (row["data"], -row["runs"]))


def _row(runs: Sequence[WatchedRun]) -> SpentRow:
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
