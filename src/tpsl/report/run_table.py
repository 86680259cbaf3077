"""The runs as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from tpsl.report.run_view import RunView
from tpsl.report.words import auc_text, budget_text, interval_text, privacy_text, share_text, shown_attack, sum_text


def summary(view: RunView) -> dict[str, Any]:
    """Return the numbers of one run that matter most, JSON-able: those of the table and a few more."""
    test, promise = view["test"] or {}, view["promise"]
    attack = shown_attack(view) or {}
    return {
        "name": view["name"],
        "state": view["state"],
        "mechanism": promise["mechanism"],
        "estimator": promise["estimator"],
        "total_epsilon": promise["total_epsilon"],
        "total_delta": promise["total_delta"],
        "epsilon": promise["epsilon"],
        "delta": promise["delta"],
        "private": promise["private"],
        "over_vaults": view["over_vaults"],
        **{key: test.get(key) for key in ("test_auc", "test_auc_low", "test_auc_high")},
        "attack": promise["attack"],
        **{f"attack_{key}": attack.get(key) for key in ("auc", "auc_low", "auc_high")},
        "attack_closed_form": promise["closed_form"],
        "ceiling": promise["ceiling"],
        "epochs": view["epoch"],
        "samples_per_second": view["samples_per_second"],
        "audited_epsilon": (view["audit"] or {}).get("lower_bound"),
    }


def summary_table(views: Sequence[RunView]) -> Table:
    """Return the ε spent in all, test AUC, attack AUC, its ceiling and whether a run is private, as the page does.

    The attack is the one of `Promise.attack`: the shortest distance where gradients crossed. Its ceiling is what the
    run's own ε allows whoever scores by what was released alone.

    No number is cut off at 80 columns, and names are shown as they are, never read as markup.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
    table.add_column("Run", overflow="fold", min_width=16)
    table.add_column("ε", justify="right")
    table.add_column("Test AUC", justify="right", no_wrap=True)
    table.add_column("Attack AUC", justify="right", no_wrap=True)
    table.add_column("Ceiling", justify="right", no_wrap=True)
    table.add_column("Private")
    for view in views:
        numbers = summary(view)
        table.add_row(
            Text(view["name"]),
            _budget(view),
            *(
                _with_interval(*(numbers[f"{what}_auc{end}"] for end in ("", "_low", "_high")))
                for what in ("test", "attack")
            ),
            Text(auc_text(numbers["ceiling"])),
            Text(privacy_text(view), style="" if privacy_text(view) == "yes" else "bold red"),
        )
    return table


def sum_sentences(views: Sequence[RunView]) -> list[str]:
    """Return a sentence for each group of runs whose records more than one vault has released."""
    found: dict[str, list[str]] = {}
    for view in views:
        if view["over_vaults"]:
            found.setdefault(sum_text(view["over_vaults"]), []).append(view["name"])
    return [f"{', '.join(names)}: {text}" for text, names in found.items()]


def _budget(view: RunView) -> Text:
    share = share_text(view)
    return Text.assemble(budget_text(view), (f"\n{share}" if share else "", "dim"))


def _with_interval(area: float | None, low: float | None, high: float | None) -> Text:
    interval = interval_text(low, high)
    return Text.assemble(auc_text(area), (f"\n{interval}" if interval else "", "dim"))
