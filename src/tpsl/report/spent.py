"""What all runs together have spent on the same records, and which vaults say so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import TypedDict

from tpsl.report.ledgers import vault_label
from tpsl.report.run_view import RunView
from tpsl.report.watching import Snapshot, WatchedRun
from tpsl.report.words import rounded_up
from tpsl.vault import Spent, VaultSum


class Spent(TypedDict):
    """What was released of some records in all: the most that any one of them has spent."""

    data: str
    runs: int
    """How many runs of the snapshot were trained on them."""
    epsilon_text: str
    delta_text: str
    private: bool
    vaults: list[dict[str, str]]
    """`vault`, and `epsilon_text` of each that has a part in it."""
    note: str
    """Why the vault could not be asked, or nothing; then the numbers are those that the runs have noted."""


def spent_on(snapshot: Snapshot) -> list[Spent]:
    """Return a row for each group of runs whose records the same vaults have released."""
    read: dict[tuple[Path, ...], list[tuple[WatchedRun, VaultSum]]] = {}
    unread: dict[Path, list[WatchedRun]] = {}
    for run in snapshot.runs:
        found = snapshot.sums.get(run.vault.resolve()) if run.vault else None
        if found is not None and found.parts:
            read.setdefault(tuple(sorted(found.parts)), []).append((run, found))
        elif run.vault is not None and found is None and run.view["ledger_note"] and not run.view["scratch"]:
            unread.setdefault(run.vault, []).append(run)
    rows = [_as_vaults_say(group) for group in read.values()]
    rows += [_as_runs_have_noted(vault, runs) for vault, runs in unread.items()]
    return sorted(rows, key=lambda row: (row["data"], -row["runs"]))


def _as_vaults_say(group: Sequence[tuple[WatchedRun, VaultSum]]) -> Spent:
    sums = [found for _, found in group]
    parts = {path: rounded_up(max(found.parts[path].epsilon for found in sums), 4) for path in sorted(sums[0].parts)}
    vaults = [{"vault": vault_label(path), "epsilon_text": text} for path, text in parts.items()]
    return _row([run for run, _ in group], (found.total for found in sums), vaults, "")


def _as_runs_have_noted(vault: Path, runs: Sequence[WatchedRun]) -> Spent:
    noted = (_noted(run.view) for run in runs)
    return _row(runs, noted, [{"vault": vault_label(vault)}], runs[0].view["ledger_note"])


def _noted(view: RunView) -> Spent:
    promise = view["promise"]
    epsilon = math.inf if promise["total_epsilon"] is None else promise["total_epsilon"]
    return Spent(epsilon, promise["total_delta"], promise["private"])


def _row(runs: Sequence[WatchedRun], totals: Iterable[Spent], vaults: list[dict[str, str]], note: str) -> Spent:
    total = reduce(Spent.joined, totals)
    return Spent(
        data=", ".join(sorted({run.view["data"] for run in runs})),
        runs=len(runs),
        epsilon_text=rounded_up(total.epsilon, 4),
        delta_text=rounded_up(total.delta, 2) if total.delta else "",
        private=total.private,
        vaults=vaults,
        note=note,
    )
