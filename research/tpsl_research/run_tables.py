"""Tables for papers from runs. They are the label party's: test and attack AUCs depend on true labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from tpsl.attacks.scoring import ScoredBy
from tpsl.files import write_atomically
from tpsl.report.run_table import summary
from tpsl.report.run_view import RunView
from tpsl.report.words import KINDS, MISSING, auc_text, bound_text, measured_text, spoken
from tpsl_research.text_table import Table


def runs_table(views: Sequence[RunView]) -> Table:
    """Return promise, test AUC and attack AUC of each run; a column in which no run has anything is left out."""
    numbers = [summary(view) for view in views]
    columns = {
        "Run": [view["name"] for view in views],
        "Mechanism": [view["promise"]["mechanism"] for view in views],
        "Estimator": [view["promise"]["estimator"] for view in views],
        "ε": [view["promise"]["epsilon_text"] + ("" if _is_private(view) else " (seeded)") for view in views],
        "δ": [view["promise"]["delta_text"] if view["promise"]["delta"] else MISSING for view in views],
        "Test AUC": [_measured(view["test"] or {}, "test_auc") for view in views],
        "Strongest attack": [spoken(one["attack"] or MISSING) for one in numbers],
        "Attack AUC": [_measured(one, "attack_auc") for one in numbers],
        "Bound": [bound_text(*(one[f"bound{end}"] for end in ("", "_low", "_high"))) for one in numbers],
        "Bound for": [KINDS.get(one["bound_of"], MISSING) for one in numbers],
        "Audited ε ≥": [_rounded_down((view["audit"] or {}).get("lower_bound")) for view in views],
    }
    shown = {head: cells for head, cells in columns.items() if set(cells) != {MISSING}}
    caption = (
        "Runs, AUCs with 95 % intervals. Attack AUC: the strongest attack that was measured. Bound: the most that "
        "attackers of its kind can reach, on average; proved from ε, or estimated with true labels (≈). Of a run that "
        "was not attacked it is the bound of an attacker who scores by what was released alone."
    )
    return Table(caption, (tuple(shown), *zip(*shown.values(), strict=True)))


def attacks_table(views: Sequence[RunView]) -> Table | None:
    """Return the AUC of every attack on every run that was attacked; None where none was."""
    attacked = [view for view in views if _attacks(view)]
    names = list(dict.fromkeys(name for view in attacked for name in _attacks(view)))
    if not names:
        return None
    head = ("Attack", *(f"{view['name']}, ε = {view['promise']['epsilon_text']}" for view in attacked))
    body = [
        (name.replace("_", " "), *(auc_text(_attacks(view).get(name, {}).get("auc")) for view in attacked))
        for name in names
    ]
    bounds = [
        (f"bound: {kind}", *(_bound(view, kind) for view in attacked))
        for kind in get_args(ScoredBy)
        if any(_bound(view, kind) != MISSING for view in attacked)
    ]
    kinds = {name: attack.get("scored_by") for view in attacked for name, attack in _attacks(view).items()}
    members = "; ".join(
        f"{kind}: " + ", ".join(name.replace("_", " ") for name, of in kinds.items() if of == kind)
        for kind in get_args(ScoredBy)
        if kind in kinds.values()
    )
    caption = (
        "AUC of every attack, scored with true labels; 0.5 is guessing. Bounds are those of attackers who score by "
        f"the same ({members}); ≈ is an estimate."
    )
    return Table(caption, (head, *body, *bounds))


def _bound(view: RunView, kind: str) -> str:
    """Return the bound of the attacks on a run that score by this."""
    found = (attack for attack in _attacks(view).values() if attack.get("scored_by") == kind)
    ends = ("ceiling", "ceiling_low", "ceiling_high")
    return next((bound_text(*(attack.get(end) for end in ends)) for attack in found), MISSING)


def write_tables(views: Sequence[RunView], folder: Path) -> list[Path]:
    """Write every table that the runs have numbers for, as .tex and .md; return the files."""
    written = []
    for name, table in (("runs", runs_table(views)), ("attacks", attacks_table(views))):
        if table is not None:
            for ending, content in (("tex", table.latex(name)), ("md", table.markdown())):
                written.append(folder / f"{name}.{ending}")
                write_atomically(written[-1], content.encode("utf-8", errors="replace"))
    return written


def _is_private(view: RunView) -> bool:
    return view["promise"]["private"] or view["promise"]["epsilon"] is None


def _attacks(view: RunView) -> dict[str, Any]:
    found: dict[str, Any] = (view["attacks"] or {}).get("attacks", {})
    return found


def _measured(numbers: dict[str, Any], key: str) -> str:
    return measured_text(*(numbers.get(f"{key}{end}") for end in ("", "_low", "_high")))


def _rounded_down(bound: float | None) -> str:
    return MISSING if bound is None else f"{int(bound * 1e4 + 1e-7) / 1e4:.4f}"
