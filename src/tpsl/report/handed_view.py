"""From the label party's folder to a `RunView` that it can hand to a feature party: nothing depends on a label's value.

What is taken is what a signed statement says too (`tpsl.vault.statement`): numbers of records and what they have spent.
Not taken are the ledger's entries and hashes (a correction of labels is among them), what people with several records
have spent over alignments (whom the label party knows may be the label), and everything that was measured.
"""

from __future__ import annotations

from pathlib import Path

from tpsl.net.peers import LABEL_PARTY
from tpsl.report.known_vaults import Memory, ledger_at
from tpsl.report.label_view import job_view
from tpsl.report.promises import promise_of
from tpsl.report.run_view import RunView
from tpsl.report.statements import own_statement
from tpsl.report.words import records_text, spent_text
from tpsl.training.run_folder import RunFolder
from tpsl.vault import Spent
from tpsl.vault.ledger import Ledger


def read_handed_view(path: Path, party: str, name: str | None = None, *, memory: Memory | None = None) -> RunView:
    """Return what the label party can hand over of a run.

    Guarantee: two runs that differ in nothing but true labels, and in what follows from these, give the same view.
    """
    run = RunFolder(path)
    job, result, memory = run.job(), run.result(), memory or Memory.of([path])
    place = memory.place(run)
    ledger, (besides, gone) = ledger_at(place), memory.besides(run)
    if ledger is None or place is None:
        raise ValueError(f"{path}: its vault cannot be reached, and it says what was spent; name it with --vault")
    records = result.train_records if result is not None else ledger.records
    stated = _stated_total(ledger, records)
    total = stated.plus(besides) if stated is not None else None
    promise = promise_of(job, ledger.classes, total=total, records=records)
    view = job_view(path, job, party, promise, ledger.classes, name)
    view["program"] = run.program(LABEL_PARTY)
    view["train_records"], view["spent_by"] = records, "ledger" if total is not None else "run"
    view["gone_vaults"], view["apart"] = gone, ledger.apart
    view["updated"] = max((entry.time for entry in ledger.entries if entry.is_release), default=None)
    found = own_statement(run, place, [entry.hash for entry in ledger.entries])
    view["statement"] = found and {**found, "entries_since": None}
    view["ledger_note"] = (
        f"By the label party’s ledger {ledger.released_records:,} of {records_text(ledger.records)} had a release, and "
        f"{_spent_words(stated)} Its entries stay with the label party; a signed statement sums them up."
    )
    if result is not None:
        view["state"], view["step"], view["epoch"] = "finished", result.steps, result.epochs
    return view


def _stated_total(ledger: Ledger, records: int) -> Spent | None:
    """Return what anybody has spent in all; None where that would tell whom the label party knows."""
    if not ledger.counts_people:
        return Spent(ledger.epsilon_per_record, ledger.delta_per_record, ledger.private, records)
    unit = ledger.stated_unit
    if unit is None:
        return None
    return Spent(unit.epsilon, unit.delta, ledger.private, records, who="person")


def _spent_words(total: Spent | None) -> str:
    if total is None:
        return "what a person has spent over several alignments is not said: it would tell whom that party knows."
    whom = "nobody, over all alignments," if total.who == "person" else "none"
    return f"{whom} has spent more than {spent_text(total.epsilon, total.delta)} in all."
