"""Tables for papers from runs. They are the label party's: test and attack AUCs depend on true labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from tpsl.attacks.scoring import ScoredBy
from tpsl.files import write_atomically
from tpsl.report.run_view import Attack, RunView
from tpsl.report.words import KINDS, MISSING, NO_NUMBER, at_least_text, auc_text, bound_text, measured_text, spoken
from tpsl_research.text_table import Table


def runs_table(views: Sequence[RunView]) -> Table:
    """Return promise, test AUC and attack AUC of each run; a column in which no run has anything is left out."""
    columns = {
        "Run": [view.name for view in views],
        "Mechanism": [view.promise.mechanism for view in views],
        "Estimator": [view.promise.estimator for view in views],
        "ε": [view.promise.epsilon_text + (" (seeded)" if view.promise.seeded else "") for view in views],
        "δ": [view.promise.delta_text if view.promise.delta else MISSING for view in views],
        "Test AUC": [measured_text(*(view.auc or NO_NUMBER)) for view in views],
        "Strongest attack": [spoken(view.attack.name) if view.attack else MISSING for view in views],
        "Attack AUC": [measured_text(*(view.attack.auc if view.attack else NO_NUMBER)) for view in views],
        "Bound": [bound_text(*(view.bound or NO_NUMBER)) for view in views],
        "Bound for": [KINDS.get(view.bound_of, MISSING) for view in views],
        "Audited ε ≥": [at_least_text(view.audited_epsilon) for view in views],
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
    attacked = [(view, {attack.name: attack for attack in view.attacks.made}) for view in views if view.attacks]
    kinds = {name: attack.kind for _, made in attacked for name, attack in made.items()}
    if not kinds:
        return None
    head = ("Attack", *(f"{view.name}, ε = {view.promise.epsilon_text}" for view, _ in attacked))
    body = [
        (spoken(name), *(auc_text(made[name].auc.value if name in made else None) for _, made in attacked))
        for name in kinds
    ]
    used = [kind for kind in get_args(ScoredBy) if kind in kinds.values()]
    bounds = [(f"bound: {kind}", *(_bound(made.values(), kind) for _, made in attacked)) for kind in used]
    members = "; ".join(
        f"{kind}: " + ", ".join(spoken(name) for name, of in kinds.items() if of == kind) for kind in used
    )
    caption = (
        "AUC of every attack, scored with true labels; 0.5 is guessing. Bounds are those of attackers who score by "
        f"the same ({members}); ≈ is an estimate."
    )
    return Table(caption, (head, *body, *(row for row in bounds if set(row[1:]) != {MISSING})))


def _bound(made: Iterable[Attack], kind: str) -> str:
    """Return the bound of the attacks on a run that score by this."""
    return next((bound_text(*(attack.bound or NO_NUMBER)) for attack in made if attack.kind == kind), MISSING)


def write_tables(views: Sequence[RunView], folder: Path) -> list[Path]:
    """Write every table that the runs have numbers for, as .tex and .md; return the files."""
    written = []
    for name, table in (("runs", runs_table(views)), ("attacks", attacks_table(views))):
        if table is not None:
            for ending, content in (("tex", table.latex(name)), ("md", table.markdown())):
                written.append(folder / f"{name}.{ending}")
                write_atomically(written[-1], content.encode("utf-8", errors="replace"))
    return written
