"""The summary as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from tpsl.report.summary import RunSummary
from tpsl.report.words import auc_text, epsilon_text, interval_text, privacy_text


def summary_table(rows: Sequence[RunSummary]) -> Table:
    """Return claimed ε, test AUC, shortest-distance attack AUC, its closed form and whether the run is private.

    No number is cut off at 80 columns, and names are shown as they are, never read as markup.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
    table.add_column("Run", overflow="fold", min_width=16)
    table.add_column("Claimed\nε", justify="right")
    table.add_column("Test AUC", justify="right", no_wrap=True)
    table.add_column("Attack AUC", justify="right", no_wrap=True)
    table.add_column("Closed\nform", justify="right", no_wrap=True)
    table.add_column("Private")
    for row in rows:
        table.add_row(
            Text(row.name),
            Text(epsilon_text(row)),
            _with_interval(row.test_auc, row.test_auc_low, row.test_auc_high),
            _with_interval(row.attack_auc, row.attack_auc_low, row.attack_auc_high),
            Text(auc_text(row.attack_closed_form)),
            Text(privacy_text(row), style="" if row.private else "bold red"),
        )
    return table


def _with_interval(area: float, low: float, high: float) -> Text:
    interval = interval_text(low, high)
    return Text.assemble(auc_text(area), (f"\n{interval}" if interval else "", "dim"))
