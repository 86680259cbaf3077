"""What `tpsl init` prints: what the tables seem to hold, what to know of the guesses, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpsl.cli.console import Report, slim_table
from tpsl.cli.drafting import LABEL
from tpsl.cli.guessing import ABSENT, MOST_CLASSES, looks_like_label

if TYPE_CHECKING:
    from rich.table import Table

    from tpsl.cli.drafting import TablesDraft, Wishes
    from tpsl.cli.guessing import ColumnGuess
    from tpsl.cli.init_files import JobDraft
    from tpsl.data.check import DataReport


def guesses(draft: TablesDraft) -> Iterator[str | Table]:
    """Yield what the tables seem to hold."""
    for file in draft.files:
        records = f"{'' if file.sample.is_whole else 'the first '}{file.sample.rows:,} records"
        yield f"{file.sample.path} ({file.party}): {records}, id {file.id!r}"
        if file.label is not None:
            classes = ", ".join(
                f"{name} ({count:,})" for name, count in zip(file.label.names, file.label.counts, strict=True)
            )
            yield f"label {file.label.column!r}: {classes}"
        if file.columns:
            yield _table(file.columns)


def _table(columns: Sequence[ColumnGuess]) -> Table:
    rows = (
        (column.name, column.kind or f"– ({column.reason})", f"{column.missing:,}", f"{column.distinct:,}")
        for column in columns
    )
    numbers = ("missing", "different")
    return slim_table(("column", "taken as", *numbers), rows, numbers=numbers)


def notes(draft: TablesDraft, wishes: Wishes) -> Iterator[str]:
    """Yield what a person should know of the guesses, and how to say otherwise."""
    for file in draft.files:
        unclear = [each.name for each in file.columns if each.kind == "date" and len(each.date_orders) > 1]
        if unclear and wishes.date_order is None:
            yield f"{', '.join(unclear)}: read with the day first; --set date_order=month if the month is"
        for each in file.columns:
            if each.kind == "date" and each.short_year:
                leave_out = f"if they are no dates, --set drop={each.name}"
                yield f"{each.name}: dates as {each.short_year} are in 1969 to 2068; {leave_out}"
        if odd := [repr(text) for text in file.missing if text not in ABSENT]:
            yield f"taken for missing values, and named in the job: {', '.join(odd)}"
    at_label, label = draft.label, draft.guessed_label
    if at_label is None or label is None:
        return
    yield from _label_elsewhere(draft, label.column)
    if not label.is_sure and wishes.positive is None:
        yield f"predicted is the probability of {label.names[-1]!r}; --set positive=VALUE says otherwise"
    if at_label.unit:
        yield f"{at_label.unit!r} of the label party repeats: the ledger will state the largest ε of any of them"
    beside = [
        each.name for each in at_label.columns if each.kind is None and each.name not in (*wishes.drop, wishes.time)
    ]
    if beside:
        yield (
            f"not used of the label party: {', '.join(beside)}; what was known before the label can be named with "
            "--set numeric=, categorical= or dates="
        )
    if draft.dates_in_all and draft.features and wishes.time is None:
        yield f"to test on the latest records: --set time={draft.dates_in_all[0]}"


def _label_elsewhere(draft: TablesDraft, chosen: str) -> Iterator[str]:
    """Yield the columns of feature parties that are called as labels are, where the label is not: wrong order?"""
    for file in draft.features if not looks_like_label(chosen) else ():
        for column in file.columns:
            if looks_like_label(column.name) and 2 <= column.distinct <= MOST_CLASSES:
                yield f"{column.name!r} of {file.sample.path.name} looks like a label: the table of labels comes last"


def as_dict(draft: TablesDraft, report: DataReport) -> dict[str, Any]:
    """Return the guesses as JSON has them; how often a label occurs is not among them."""
    tables = [
        {
            "party": file.party,
            "path": str(file.sample.path),
            "id": file.id,
            "columns": {column.name: column.kind for column in file.columns},
            **({"label": file.label.column, "classes": list(file.label.names)} if file.label else {}),
        }
        for file in draft.files
    ]
    return {"tables": tables, "findings": [asdict(finding) for finding in report.findings]}


def findings(report: DataReport) -> Iterator[str]:
    """Yield what is strange about the data, a line each."""
    for finding in report.findings:
        yield f"{finding.level}: {finding.text}"


def written(job: JobDraft, files: Sequence[Path], report: DataReport) -> Report:
    """Return what was written, and what to do with it."""
    names = [str(file) for file in files]
    headline = f"Wrote {', '.join(names[:-1])} and {names[-1]}"
    if not job.is_complete:
        return Report(headline, _what_the_other_side_needs(job, files[0]))
    if not report.passed:
        return Report(f"{headline}, but the data have errors", {}, {"mend them, then": f"tpsl check {files[0]}"})
    parties = [file.party for file in job.tables.files]
    is_alone = LABEL not in parties or len(parties) == 1
    then = "edit it as you like, then send it" if is_alone else "edit it as you like, and show it"
    facts = {"the job": f"names columns and classes, no contents: {then} to the other side"}
    if job.aligned:
        counts = list(report.common_ids.values())
        common = f"{counts[0]:,} are in both tables" if len(counts) == 1 else "the parties' ids differ"
        facts["records"] = f"{common}; training takes the common ones, and all parties learn which"
    if not is_alone:
        return Report(headline, facts, _together(job, files[0]) | _apart(job, files[0], parties))
    facts["ids"] = "must be the same at both sides; if some differ, add `alignment: {mode: both}` under data"
    return Report(headline, facts, _apart(job, files[0], parties))


def _what_the_other_side_needs(job: JobDraft, part: Path) -> dict[str, str]:
    has_labels = job.tables.label is not None
    told = "of your columns and of the labels, no counts" if has_labels else "of your columns, no contents"
    theirs = "feature" if has_labels else "label"
    return {
        "send": f"{part} to the other side; it holds the names {told}",
        "there": f"tpsl init TABLE --party {theirs} --with {part.name} writes job.yaml, which both sides need",
    }


def _together(job: JobDraft, name: Path) -> dict[str, str]:
    """Return the commands with which one process is all parties."""
    align = {"find common records": f"tpsl align {name} --together"} if job.aligned else {}
    return align | {
        "train, in one process": f"tpsl train {name} --out runs/first",
        "attack it yourself": "tpsl attack runs/first",
        "make the page": "tpsl report runs/first",
    }


def _apart(job: JobDraft, name: Path, parties: Sequence[str]) -> dict[str, str]:
    """Return the commands of parties that are programs of their own."""
    certificates = f"tpsl certs {name}" + ("" if name.parent == Path() else f" --out {name.parent / 'certs'}")
    found = {"two parties: first": certificates}
    for party in sorted(parties, key=lambda party: party != LABEL):
        local = f"{name} --local {name.with_name(party + '.yaml')}"
        command = "label serve" if party == LABEL else "feature join"
        found |= {f"{party} party: align": f"tpsl align {local}"} if job.aligned else {}
        found[f"{party} party: train"] = f"tpsl {command} {local}"
    run = Path("runs") / f"{name.stem}-{LABEL}"
    found[f"{LABEL} party: test, afterwards"] = f"tpsl label evaluate {run} --local {name.with_name(LABEL + '.yaml')}"
    return found
