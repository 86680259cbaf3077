"""The runs as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from tpsl.report.run_view import RunView
from tpsl.report.verdicts import attack_without_run, promised_bound_of, strongest_attack
from tpsl.report.words import (
    KINDS,
    auc_text,
    bound_text,
    budget_text,
    interval_text,
    of_vault,
    privacy_text,
    share_text,
    spoken,
)


def summary(view: RunView) -> dict[str, Any]:
    """Return the numbers of one run that matter most, JSON-able: those of the table and a few more.

    `attack` is the strongest one that was measured, and `bound` is that of its kind of attacker, `bound_of`. Of a run
    that was not attacked they are null, and the bound of who scores by what was released alone.
    """
    test, promise = view["test"] or {}, view["promise"]
    attack, without = strongest_attack(view), attack_without_run(view)
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
        "epsilon_all_labels": view["epsilon_all_labels"],
        "gone_vaults": view["gone_vaults"],
        "apart": view["apart"],
        **{key: test.get(key) for key in ("test_auc", "test_auc_low", "test_auc_high")},
        "attack": attack and attack["name"],
        **{f"attack_{key}": attack and attack[key] for key in ("auc", "auc_low", "auc_high")},
        **_bound(view),
        "without_run_auc": without and without["auc"],
        "predicted_attack": promise["attack"],
        "predicted_auc": promise["closed_form"],
        "epochs": view["epoch"],
        "samples_per_second": view["samples_per_second"],
        "audited_epsilon": (view["audit"] or {}).get("lower_bound"),
    }


def _bound(view: RunView) -> dict[str, Any]:
    """Return the bound that stands beside the attack of a table, and the kind of attacker whom it is for."""
    attack, proved = strongest_attack(view), view["promise"]["ceiling"]
    if attack is None:
        return {"bound": proved, "bound_low": proved, "bound_high": proved, "bound_of": promised_bound_of(view)}
    return {
        "bound": attack["bound"],
        "bound_low": attack["bound_low"],
        "bound_high": attack["bound_high"],
        "bound_of": attack["kind"],
    }


def shown(view: RunView) -> dict[str, Any]:
    """Return the attack of the table and its bound as pages show them; the bound alone where there is no attack."""
    numbers = summary(view)
    return {
        "name": numbers["attack"],
        **{key: numbers[f"attack_{key}"] for key in ("auc", "auc_low", "auc_high")},
        "bound": numbers["bound"],
        "bound_text": bound_text(*(numbers[f"bound{end}"] for end in ("", "_low", "_high"))),
        "bound_of": KINDS.get(numbers["bound_of"], ""),
    }


def summary_table(views: Sequence[RunView]) -> Table:
    """Return the ε spent in all, test AUC, strongest attack, the bound of its kind and whether a run is private.

    No number is cut off at 80 columns, and names are shown as they are, never read as markup.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
    table.add_column("Run", overflow="fold", min_width=12)
    table.add_column("ε", justify="right")
    table.add_column("Test AUC", justify="right", no_wrap=True)
    table.add_column("Attack AUC", justify="right", min_width=13, max_width=13)
    table.add_column("Bound", justify="right", min_width=14, max_width=14)
    table.add_column("Private")
    for view in views:
        attack, test = shown(view), view["test"] or {}
        table.add_row(
            Text(view["name"]),
            _budget(view),
            _with_interval(test.get("test_auc"), test.get("test_auc_low"), test.get("test_auc_high")),
            _with_interval(attack["auc"], attack["auc_low"], attack["auc_high"], spoken(attack["name"] or "")),
            Text.assemble(attack["bound_text"], (f"\n{attack['bound_of']}", "dim")),
            Text(privacy_text(view), style="" if privacy_text(view) == "yes" else "bold red"),
        )
    return table


def vault_sentences(views: Sequence[RunView]) -> list[str]:
    """Return what is to be said of the vaults of runs, each sentence with the names of its runs."""
    found: dict[str, list[str]] = {}
    for view in views:
        for text in of_vault(view):
            found.setdefault(text, []).append(view["name"])
    return [f"{', '.join(names)}: {text}" for text, names in found.items()]


def _budget(view: RunView) -> Text:
    share = share_text(view)
    return Text.assemble(budget_text(view), (f"\n{share}" if share else "", "dim"))


def _with_interval(area: float | None, low: float | None, high: float | None, name: str = "") -> Text:
    below = [text for text in (interval_text(low, high), name) if text]
    return Text.assemble(auc_text(area), ("".join(f"\n{text}" for text in below), "dim"))
