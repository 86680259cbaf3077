"""The runs as a table: the same cells on a page, in the list of `tpsl ui` and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from tpsl.report.chart import Cell
from tpsl.report.run_view import Interval, RunView
from tpsl.report.verdicts import cost
from tpsl.report.words import (
    KINDS,
    MISSING,
    NO_NUMBER,
    at_least_text,
    auc_text,
    bound_text,
    count_text,
    duration_text,
    interval_text,
    of_vault,
    privacy_text,
    signed_text,
    spoken,
    time_text,
)


def summary(view: RunView) -> dict[str, Any]:
    """Return the numbers of one run that matter most, JSON-able: those of the table and a few more.

    `attack` is the strongest one that was measured, and `bound` is that of its kind of attacker, `bound_of`. Of a run
    that was not attacked they are null, and the bound of who scores by what was released alone.
    """
    promise, attack, without = view.promise, view.attack, view.attack_without_run
    return {
        "name": view.name,
        "state": view.state,
        "mechanism": promise.mechanism,
        "estimator": promise.estimator,
        "total_epsilon": promise.total_epsilon,
        "total_delta": promise.total_delta,
        "epsilon": promise.epsilon,
        "delta": promise.delta,
        "private": promise.private,
        "epsilon_all_labels": view.epsilon_all_labels,
        "gone_vaults": view.gone_vaults,
        "apart": view.apart,
        "version": view.version,
        "starts_from": view.starts_from,
        "train_records": view.train_records,
        **_numbers("test_auc", view.auc),
        "attack": attack and attack.name,
        **_numbers("attack_auc", view.attack_auc),
        **_numbers("bound", view.bound),
        "bound_of": view.bound_of,
        "without_run_auc": without and without.auc.value,
        "predicted_attack": promise.attack,
        "predicted_auc": promise.closed_form,
        "epochs": view.epoch,
        "samples_per_second": view.samples_per_second,
        "audited_epsilon": view.audited_epsilon,
    }


def _numbers(name: str, interval: Interval | None) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), interval or NO_NUMBER, strict=True))


def run_cells(view: RunView, views: Sequence[RunView] = ()) -> dict[str, Cell]:
    """Return what tables show of a run among `views`, by column; each place chooses its columns."""
    promise, attack, lost = view.promise, view.attack, cost(view, views)
    private, bound, kind = privacy_text(view), bound_text(*(view.bound or NO_NUMBER)), KINDS.get(view.bound_of, "")
    delta = f"δ = {promise.total_delta_text}" if promise.total_delta else ""
    wait = "" if view.state == "finished" else f"unfinished: epoch {view.epoch:,} of {view.epochs:,}"
    attacked = (interval_text(attack.auc.low, attack.auc.high), spoken(attack.name)) if attack else ()
    return {
        "Run": Cell(view.name, None, _some(wait)),
        "Written (UTC)": Cell(time_text(view.updated)),
        "ε": Cell(promise.total_epsilon_text, promise.total_epsilon, _some(delta, view.own_share)),
        "Test AUC": _area(view.auc, *([interval_text(view.auc.low, view.auc.high)] if view.auc else [])),
        "Attack AUC": _area(view.attack_auc, *attacked),
        "Bound": Cell(bound, view.bound and view.bound.value, _some(kind)),
        "Private": Cell(private),
        "Mechanism": Cell(promise.mechanism, None, [promise.estimator]),
        "Cost in AUC": Cell(signed_text(lost.value, 4) if lost else MISSING, lost and lost.value),
        "Audited ε ≥": Cell(at_least_text(view.audited_epsilon), view.audited_epsilon),
        "Training records": Cell(count_text(view.train_records), view.train_records),
        "Records/s": Cell(count_text(view.samples_per_second), view.samples_per_second),
        "Trained in": Cell(duration_text(view.seconds), view.seconds),
    }


def _area(area: Interval | None, *notes: str) -> Cell:
    return Cell(auc_text(area and area.value), area and area.value, _some(*notes))


def _some(*texts: str) -> list[str]:
    return [text for text in texts if text]


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
        cells = run_cells(view)
        texts = [
            Text.assemble(cell.text, ("".join(f"\n{note}" for note in cell.notes), "dim"))
            for cell in (cells[str(column.header)] for column in table.columns)
        ]
        texts[-1].stylize("" if view.private else "bold red")
        table.add_row(*texts)
    return table


def vault_sentences(views: Sequence[RunView]) -> list[str]:
    """Return what is to be said of the vaults of runs, each sentence with the names of its runs."""
    found: dict[str, list[str]] = {}
    for view in views:
        for text in of_vault(view):
            found.setdefault(text, []).append(view.name)
    return [f"{', '.join(names)}: {text}" for text, names in found.items()]
