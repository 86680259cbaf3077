"""`tpsl init`: from two tables that nobody prepared to a job, and to a local file for each party."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from tpsl.cli.console import Report, answer, notice, progress_bar, slim_table
from tpsl.cli.drafting import FileDraft, JobDraft, draft_tables, read_part
from tpsl.cli.flags import EpsilonOption, JsonFlag, argument, option
from tpsl.cli.guessing import ABSENT, MOST_CLASSES, Sample, looks_like_label, sample_of
from tpsl.cli.preview import tell_of_rare_labels
from tpsl.data.check import DataReport, check_data
from tpsl.data.config import TableData
from tpsl.data.rawtable import FIND_COMMON_RECORDS
from tpsl.files import make_private_folder, write_atomically
from tpsl.net.peers import LABEL_PARTY
from tpsl.tables.locations import location_of
from tpsl.training.job_sections import PrivacyConfig
from tpsl.training.method import rare_label_warning


def init(
    files: Annotated[
        list[str],
        argument(
            "FEATURES… LABELS",
            "Tables (CSV or Parquet): the feature parties', then the label party's; with --party this side's.",
        ),
    ],
    party: Annotated[
        Literal["label", "feature"] | None,
        option("NAME", "Which side you are, label or feature, if you have one table."),
    ] = None,
    part: Annotated[Path | None, option("FILE", "The part of the job that the other side has sent.", "--with")] = None,
    epsilon: EpsilonOption = None,
    id: Annotated[
        list[str] | None, option("COLUMN", "The id column; once for each of its names, if tables differ in it.")
    ] = None,
    label: Annotated[str | None, option("COLUMN", "The label column.")] = None,
    out: Annotated[Path, option("FOLDER", "Folder to write to.")] = Path(),
    json: JsonFlag = False,
) -> None:
    """Look at your tables, guess what their columns are, and write a job to train with.

    Nothing is sent anywhere. The guesses are shown, and stand in the job, where they can be changed. Example:

    tpsl init features.csv labels.csv
    """
    features, labels = _samples(files, party)
    if epsilon is not None and labels is None:
        raise ValueError("--epsilon: how private labels are is for the label party to say, in its own `tpsl init`")
    other, theirs = read_part(part) if part else ({}, None)
    asked = theirs if labels is None else epsilon
    draft = draft_tables(features, labels, id or (), label)
    draft = replace(draft, epsilon=1.0 if asked is None else float(asked), other=other)
    for path in draft.texts(out):
        if path.exists():  # a person may have edited it
            raise ValueError(f"{path}: is there already; remove it, or choose another --out")
    if not json:
        answer(False, {}, _guesses(draft))
    draft, report = _checked(draft)
    texts = draft.texts(out)
    make_private_folder(out.absolute())
    for path, text in texts.items():
        write_atomically(path, text.encode())
    for sentence in _notes(draft):
        notice(sentence)
    if asked is None and labels is not None:
        notice("the job asks for ε = 1; --epsilon says otherwise (0.5 is strong, 4 weak)")
    content = {"files": [str(path) for path in texts], **_as_dict(draft, report)}
    findings = (f"{finding.level}: {finding.text}" for finding in report.findings)
    answer(json, content, [*findings, *_written(draft, list(texts), report)])
    if not report.passed:
        raise typer.Exit(1)


def _samples(files: Sequence[str], party: str | None) -> tuple[list[Sample], Sample | None]:
    """Return the first records of the feature parties' tables and of the label party's, of those that are here."""
    if (len(files) == 1) != (party is not None):
        raise ValueError(
            "init takes the table of features and the table of labels; if you have only one of them, say "
            "--party feature or --party label"
        )
    samples = [sample_of(location_of(path)) for path in files]
    return (samples, None) if party == "feature" else (samples[:-1], samples[-1])


def _checked(draft: JobDraft) -> tuple[JobDraft, DataReport]:
    """Return the job, with an alignment if the parties' ids differ, and what is strange about its data.

    Of a part of a job only the classes are: it takes both sides to know what else to look for.
    """
    if not draft.is_complete:
        return draft, _classes_checked(draft)
    job = draft.job()
    with progress_bar("reading") as progress:
        report = check_data(job.data, progress=progress)
    for party, common in report.common_ids.items():
        if not common:
            ids = {file.party: _id_example(file) for file in draft.files}
            raise ValueError(
                f"{ids[party]} and {ids[LABEL_PARTY]} have no value in common: ids must be written in the same way in "
                "both tables; --id COLUMN names other columns"
            )
    if report.common_ids:
        report.findings = [each for each in report.findings if FIND_COMMON_RECORDS not in each.text]
        draft = replace(draft, aligned=True)
    tell_of_rare_labels(job, report)
    return draft, report


def _classes_checked(draft: JobDraft) -> DataReport:
    """Return what the label party should know of its classes, which its whole table tells; nothing for others."""
    report = DataReport()
    if draft.label is not None and draft.classes is not None and draft.label.sample.is_whole:
        trained = 1 - TableData.model_fields["test_fraction"].default
        counts = zip(draft.classes.names, draft.classes.counts, strict=True)
        classes = {name: round(trained * count) for name, count in counts}
        if warning := rare_label_warning(PrivacyConfig(epsilon=draft.epsilon), classes, split=True):
            report.warn(LABEL_PARTY, warning)
    return report


def _id_example(file: FileDraft) -> str:
    return f"{file.id!r} of {file.sample.path.name} (as {str(file.sample.columns[file.id][0])!r})"


def _guesses(draft: JobDraft) -> Iterator[str | Table]:
    for file in draft.files:
        records = f"{'' if file.sample.is_whole else 'the first '}{file.sample.rows:,} records"
        yield f"{file.sample.path} ({file.party}): {records}, id {file.id!r}"
        if file.label is not None:
            counts = zip(file.label.names, file.label.counts, strict=True)
            yield f"label {file.label.column!r}: " + ", ".join(f"{name} ({count:,})" for name, count in counts)
        rows = [
            (column.name, column.kind or f"– ({column.reason})", f"{column.missing:,}", f"{column.distinct:,}")
            for column in file.columns
        ]
        if rows:
            yield slim_table(("column", "taken as", "missing", "different"), rows, numbers=("missing", "different"))


def _notes(draft: JobDraft) -> Iterator[str]:
    """Yield what a person should know of the guesses, and how to say otherwise."""
    for file in draft.files:
        dates = [each for each in file.columns if each.kind == "date"]
        if unclear := [each.name for each in dates if len(each.date_orders) > 1]:
            yield f"{', '.join(unclear)}: read with the day first; write date_order: month if the month is"
        for each in dates:
            if each.short_year:
                yield f"{each.name}: dates as {each.short_year} are in 1969 to 2068; if they are no dates, leave it out"
        if odd := [repr(text) for text in file.missing if text not in ABSENT]:
            yield f"taken for missing values, and named in the job: {', '.join(odd)}"
    at_label, label = draft.label, draft.classes
    if at_label is None or label is None:
        return
    for file in draft.features if not looks_like_label(label.column) else ():
        for column in file.columns:
            if looks_like_label(column.name) and 2 <= column.distinct <= MOST_CLASSES:
                yield f"{column.name!r} of {file.sample.path.name} looks like a label: the table of labels comes last"
    if not label.is_sure:
        yield f"predicted is the probability of {label.names[-1]!r}; for the other one, swap class_values in the job"
    if at_label.unit:
        yield f"{at_label.unit!r} of the label party repeats: the ledger will state the largest ε of any of them"
    if at_label.columns:
        names = ", ".join(column.name for column in at_label.columns)
        yield f"not used of the label party: {names}; the job can name what was known before the label, as its numeric"


def _as_dict(draft: JobDraft, report: DataReport) -> dict[str, Any]:
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


def _written(draft: JobDraft, files: Sequence[Path], report: DataReport) -> Report:
    name, names = files[0], [str(file) for file in files]
    headline = f"Wrote {', '.join(names[:-1])} and {names[-1]}"
    if not draft.is_complete:
        has_labels = draft.label is not None
        told = "of your columns and of the labels, no counts" if has_labels else "of your columns, no contents"
        there = f"tpsl init TABLE --party {'feature' if has_labels else 'label'} --with {name.name}"
        send = f"{name} to the other side; it holds the names {told}"
        return Report(headline, {"send": send, "there": f"{there} writes job.yaml, which both sides need"})
    if not report.passed:
        return Report(f"{headline}, but the data have errors", {}, {"mend them, then": f"tpsl check {name}"})
    parties = [file.party for file in draft.files]
    is_alone = draft.label is None or len(parties) == 1
    then = "edit it as you like, then send it" if is_alone else "edit it as you like, and show it"
    facts = {"the job": f"names columns and classes, no contents: {then} to the other side"}
    if draft.aligned:
        counts = list(report.common_ids.values())
        common = f"{counts[0]:,} are in both tables" if len(counts) == 1 else "the parties' ids differ"
        facts["records"] = f"{common}; training takes the common ones, and all parties learn which"
    if is_alone:
        facts["ids"] = "must be the same at both sides; if some differ, add `alignment: {mode: both}` under data"
        return Report(headline, facts, _apart(draft, name, parties))
    together = {"find common records": f"tpsl align {name} --together"} if draft.aligned else {}
    together |= {
        "train, in one process": f"tpsl train {name} --out runs/first",
        "attack it yourself": "tpsl attack runs/first",
        "make the page": "tpsl report runs/first",
    }
    return Report(headline, facts, together | _apart(draft, name, parties))


def _apart(draft: JobDraft, name: Path, parties: Sequence[str]) -> dict[str, str]:
    certificates = f"tpsl certs {name}" + ("" if name.parent == Path() else f" --out {name.parent / 'certs'}")
    found = {"two parties: first": certificates}
    for party in sorted(parties, key=lambda party: party != LABEL_PARTY):
        local = f"{name} --local {name.with_name(party + '.yaml')}"
        command = "label serve" if party == LABEL_PARTY else "feature join"
        found |= {f"{party} party: align": f"tpsl align {local}"} if draft.aligned else {}
        found[f"{party} party: train"] = f"tpsl {command} {local}"
    evaluate = f"tpsl label evaluate runs/{name.stem}-{LABEL_PARTY} --local {name.with_name(LABEL_PARTY + '.yaml')}"
    return found | {f"{LABEL_PARTY} party: test, afterwards": evaluate}
