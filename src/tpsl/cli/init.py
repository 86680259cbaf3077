"""`tpsl init`: from tables that nobody prepared to a job, and to a local file for each party."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import typer
import yaml
from rich.table import Table

from tpsl.cli.console import Report, answer, notice, progress_bar, slim_table
from tpsl.cli.examine import tell_of_rare_labels
from tpsl.cli.flags import EpsilonOption, JsonFlag, argument, option
from tpsl.data import guessing
from tpsl.data.check import DataReport, check_data
from tpsl.data.config import TableData
from tpsl.data.guessing import ABSENT, MOST_CLASSES, DataDraft, Sample, draft_data, looks_like_label, path_from
from tpsl.data.rawtable import FIND_COMMON_RECORDS
from tpsl.files import make_private_folder, read_yaml, write_atomically
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.job import make_job
from tpsl.run.job_sections import PrivacyConfig
from tpsl.run.method import rare_label_warning
from tpsl.tables.locations import location_of


def init(
    files: Annotated[list[str], argument("FEATURES… LABELS", "CSV or Parquet: the feature parties', then the labels.")],
    party: Annotated[
        Literal["label", "feature"] | None, option("NAME", "Your side, label or feature, if you have one table.")
    ] = None,
    part: Annotated[Path | None, option("FILE", "The part of the job that the other side has sent.", "--with")] = None,
    epsilon: EpsilonOption = None,
    id: Annotated[list[str] | None, option("COLUMN", "The id column; repeat it if tables differ in its name.")] = None,
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
    other, theirs = _read_part(part) if part else ({}, None)
    asked = theirs if labels is None else epsilon
    epsilon = 1.0 if asked is None else float(asked)
    draft = replace(draft_data(features, labels, id or (), label), other=other)
    for path in _texts(draft, epsilon, out):
        if path.exists():  # a person may have edited it
            raise ValueError(f"{path}: is there already; remove it, or choose another --out")
    if not json:
        answer(False, {}, _guesses(draft))
    draft, report = _checked(draft, epsilon)
    texts = _texts(draft, epsilon, out)
    make_private_folder(out.absolute())
    for path, text in texts.items():
        write_atomically(path, text.encode())
    for sentence in _notes(draft):
        notice(sentence)
    if asked is None and labels is not None:
        notice("the job asks for ε = 1; --epsilon says otherwise (0.5 is strong, 4 weak)")
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
    content = {"files": [*map(str, texts)], "tables": tables, "findings": [asdict(each) for each in report.findings]}
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
    samples = [guessing.sample_of(location_of(path)) for path in files]
    return (samples, None) if party == "feature" else (samples[:-1], samples[-1])


def _checked(draft: DataDraft, epsilon: float) -> tuple[DataDraft, DataReport]:
    """Return the data, with an alignment if the parties' ids differ, and what is strange about them.

    Of a part of a job only the classes are, where the whole table of labels was read: it takes both sides to know more.
    """
    if not draft.is_complete:
        report = DataReport()
        if draft.label is not None and draft.label.label is not None and draft.label.sample.is_whole:
            trained, label = 1 - TableData.model_fields["test_fraction"].default, draft.label.label
            classes = {name: round(trained * count) for name, count in zip(label.names, label.counts, strict=True)}
            if warning := rare_label_warning(PrivacyConfig(epsilon=epsilon), classes):
                report.warn(LABEL_PARTY, warning)
        return draft, report
    job = make_job(_content(draft, epsilon, Path.cwd()), {}, "the job")
    with progress_bar("reading") as progress:
        report = check_data(job.data, progress=progress)
    if 0 in report.common_ids.values():
        ids = [
            f"{file.id!r} of {file.sample.path.name} (as {str(file.sample.columns[file.id][0])!r})"
            for file in draft.files
        ]
        raise ValueError(
            f"{' and '.join(ids)} have no value in common: ids must be written in the same way in all tables; --id "
            "COLUMN names other columns"
        )
    if report.common_ids:
        report.findings = [each for each in report.findings if FIND_COMMON_RECORDS not in each.text]
        draft = replace(draft, aligned=True)
    tell_of_rare_labels(job, report)
    return draft, report


def _guesses(draft: DataDraft) -> Iterator[str | Table]:
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


def _notes(draft: DataDraft) -> Iterator[str]:
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
    at_label, label = draft.label, draft.label.label if draft.label else None
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


def _written(draft: DataDraft, files: Sequence[Path], report: DataReport) -> Report:
    name, headline = files[0], f"Wrote {', '.join(map(str, files[:-1]))} and {files[-1]}"
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
    facts = {"the job": "names columns and classes, no contents: edit it as you like, then show it to the other side"}
    steps = {}
    if draft.aligned:
        facts["records"] = "the parties' ids differ: training takes the common ones, and all parties learn which"
        steps = {"find common records": f"tpsl align {name} --together"}
    if is_alone:
        facts["ids"] = "must be the same at both sides; if some differ, add `alignment: {mode: both}` under data"
        return Report(headline, facts, _apart(draft, name, parties))
    steps |= {
        "train, in one process": f"tpsl train {name} --out runs/first",
        "attack it yourself": "tpsl attack runs/first",
        "make the page": "tpsl report runs/first",
    }
    return Report(headline, facts, steps | _apart(draft, name, parties))


def _apart(draft: DataDraft, name: Path, parties: Sequence[str]) -> dict[str, str]:
    """Return the commands of parties that are two processes."""
    folder = "" if name.parent == Path() else f" --out {name.parent / 'certs'}"
    found = {"two parties: first": f"tpsl certs {name}{folder}"}
    for party in sorted(parties, key=lambda party: party != LABEL_PARTY):
        local = f"{name} --local {name.with_name(party + '.yaml')}"
        found |= {f"{party} party: align": f"tpsl align {local}"} if draft.aligned else {}
        found[f"{party} party: train"] = f"tpsl {'label serve' if party == LABEL_PARTY else 'feature join'} {local}"
    evaluate = f"tpsl label evaluate runs/{name.stem}-{LABEL_PARTY} --local {name.with_name(LABEL_PARTY + '.yaml')}"
    return found | {f"{LABEL_PARTY} party: test, afterwards": evaluate}


_USUAL_FROM, _SMALLEST_BATCH, _STEPS_AN_EPOCH = 40_000, 32, 40
"""Of fewer records batches are such that an epoch has about this many steps."""


def _content(draft: DataDraft, epsilon: float, folder: Path | None) -> dict[str, Any]:
    """Return what stands in the job, in this folder; without one, as the other side may see it."""
    rows = min(file.sample.rows for file in draft.files)
    batch = max(_SMALLEST_BATCH, 2 ** round(math.log2(rows / _STEPS_AN_EPOCH)))
    parts = {
        "data": draft.content(folder),
        "privacy": {"epsilon": epsilon} if draft.is_complete or draft.label else {},
        "method": "auto" if draft.is_complete else None,
        "training": {"batch_size": batch} if rows < _USUAL_FROM else {},
    }
    return {name: part for name, part in parts.items() if part}


def _texts(draft: DataDraft, epsilon: float, folder: Path) -> dict[Path, str]:
    """Return the text of each file to be written in a folder: the job, or what the other side needs to make it, and
    the local files of the parties that are here."""
    name = "job" if draft.is_complete else "features.part" if draft.label is None else "labels.part"
    found = {folder / f"{name}.yaml": _text(_JOB, _content(draft, epsilon, folder if draft.is_complete else None))}
    for file in draft.files:
        is_label = file.party == LABEL_PARTY
        local = {"party": file.party, "data": path_from(folder, file.sample.path)}
        local |= {"listen" if is_label else "connect": "127.0.0.1:7443", "certificates": f"certs/{file.party}"}
        limit = {"max_epsilon": epsilon} if is_label else {}
        found[folder / f"{file.party}.yaml"] = _text(_LOCAL, {**local, **limit})
    return found


def _read_part(path: Path) -> tuple[dict[str, Any], float | None]:
    """Return what the other side has sent: how it describes its table, and the ε, if it is the label party.

    Whatever else it says of privacy has no effect. Of its paths only the names are taken: they are not to be looked for
    here.
    """
    content = read_yaml(path, ValueError)
    data, privacy = (content.get(part, {}) if isinstance(content, dict) else None for part in ("data", "privacy"))
    epsilon = privacy.get("epsilon") if isinstance(privacy, dict) else None
    if not isinstance(data, dict) or not isinstance(epsilon, float | int | None):
        raise ValueError(f"{path}: is no part of a job; `tpsl init` of the other side writes one")
    features = data.get("features", [])
    for file in [*(features if isinstance(features, list) else []), data.get(LABEL_PARTY)]:
        if isinstance(file, dict) and isinstance(file.get("path"), str):
            file["path"] = PurePath(file["path"]).name
    return data, epsilon


_COMMENTS = {
    "missing": "texts that stand for a missing value",
    "date_order": "dates as text: the day first (31.12.2025) or the month first (12/31/2025)",
    "unit": "whom a record is about: the ledger states the largest ε of any of them",
    "class_values": "the labels in class order; of two, the probability of the second is predicted",
    "split": "the latest records are the test set",
    "alignment": "the ids differ: `tpsl align` finds the common records, and tells all parties which they are",
    "epsilon": "what a noisy label may tell about the true one: less is more private, more is more accurate",
    "method": "the most accurate network for noisy labels; the feature party gets them, which the same ε allows for",
    "batch_size": "records in a step: small, where records are few",
    "listen": "0.0.0.0:7443 on every network of this machine",
    "connect": "the label party's host and port",
    "certificates": "made by `tpsl certs`",
    "max_epsilon": "no label may spend more in all, whatever a job asks for",
}
_JOB = "The agreement: every party holds this file and agrees to every line. It names columns and classes, no contents."
_LOCAL = "This party's own settings. The other side never sees them."


class _Tidy(yaml.SafeDumper):
    """Lists of plain values in one line, all else in lines of their own."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Set lists in, too."""
        super().increase_indent(flow, False)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        """Write a list of plain values in one line."""
        return super().represent_sequence(tag, sequence, not any(isinstance(value, dict) for value in sequence))


def _text(head: str, content: Mapping[str, Any]) -> str:
    """Return the text of a file; keys that a newcomer will ask about have a comment."""

    def with_comment(found: re.Match[str]) -> str:
        comment = _COMMENTS.get(found[2])
        return found[0] if comment is None else f"{found[1]}# {comment}\n{found[0]}"

    text = yaml.dump(dict(content), Dumper=_Tidy, sort_keys=False, allow_unicode=True, width=100)
    return f"# {head}\n" + re.sub(r"^( *)(\w+):", with_comment, text, flags=re.MULTILINE)
