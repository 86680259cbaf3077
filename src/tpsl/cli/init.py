"""`tpsl init`: from tables that nobody prepared to a job, and to a local file for each party."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import typer
import yaml
from rich.table import Table

from tpsl.cli.console import Report, answer, notice, progress_bar, slim_table
from tpsl.cli.flags import EpsilonOption, JsonFlag, argument, option
from tpsl.cli.preview import tell_of_rare_labels
from tpsl.data import guessing
from tpsl.data.check import DataReport, check_data
from tpsl.data.config import TableData
from tpsl.data.guessing import ABSENT, MOST_CLASSES, ColumnGuess, KindOfUse, LabelGuess, Sample, looks_like_label
from tpsl.data.rawtable import FIND_COMMON_RECORDS
from tpsl.files import make_private_folder, read_yaml, write_atomically
from tpsl.net.peers import LABEL_PARTY
from tpsl.tables import DataError
from tpsl.tables.locations import Location, location_of
from tpsl.training.job import make_job
from tpsl.training.job_sections import PrivacyConfig
from tpsl.training.method import rare_label_warning


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
    samples = [guessing.sample_of(location_of(path)) for path in files]
    return (samples, None) if party == "feature" else (samples[:-1], samples[-1])


def _checked(draft: JobDraft) -> tuple[JobDraft, DataReport]:
    """Return the job, with an alignment if the parties' ids differ, and what is strange about its data.

    Of a part of a job only the classes are: it takes both sides to know what else to look for.
    """
    if not draft.is_complete:
        return draft, _classes_checked(draft)
    job = make_job(draft.content(Path.cwd()), {}, "the job")
    with progress_bar("reading") as progress:
        report = check_data(job.data, progress=progress)
    for party, common in report.common_ids.items():
        if not common:
            ids = {
                file.party: f"{file.id!r} of {file.sample.path.name} (as {str(file.sample.columns[file.id][0])!r})"
                for file in draft.files
            }
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


def _apart(draft: JobDraft, name: Path, parties: Sequence[str]) -> dict[str, str]:
    """Return the commands of parties that are two processes."""
    found = {
        "two parties: first": f"tpsl certs {name}"
        + (f" --out {name.parent / 'certs'}" if name.name != str(name) else "")
    }
    for party in sorted(parties, key=lambda party: party != LABEL_PARTY):
        local = f"{name} --local {name.with_name(party + '.yaml')}"
        found |= {f"{party} party: align": f"tpsl align {local}"} if draft.aligned else {}
        found[f"{party} party: train"] = f"tpsl {'label serve' if party == LABEL_PARTY else 'feature join'} {local}"
    evaluate = f"tpsl label evaluate runs/{name.stem}-{LABEL_PARTY} --local {name.with_name(LABEL_PARTY + '.yaml')}"
    return found | {f"{LABEL_PARTY} party: test, afterwards": evaluate}


_ROLES: dict[KindOfUse, str] = {"category": "categorical", "number": "numeric", "date": "dates"}
_USUAL_FROM, _SMALLEST_BATCH, _STEPS_AN_EPOCH = 40_000, 32, 40
"""Of fewer records batches are such that an epoch has about this many steps."""


@dataclass(frozen=True)
class FileDraft:
    """A party's table: its id, what the other columns seem to be, and the label's if it has one."""

    party: str
    sample: Sample
    id: str
    columns: tuple[ColumnGuess, ...]
    label: LabelGuess | None = None
    unit: str | None = None

    @property
    def date_order(self) -> str:
        """The order of dates: of those in which all columns but ISO 8601 ones can be read, the first."""
        orders = [each.date_orders for each in self.columns if each.kind == "date" and each.date_orders != ("year",)]
        return next((order for order in ("day", "month") if orders and all(order in each for each in orders)), "year")

    @property
    def missing(self) -> list[str]:
        """Texts other than the empty one that stand for a missing value in a column that is used."""
        used = (text for column in self.columns if column.kind is not None for text in column.absent if text)
        return list(dict.fromkeys(used))

    def as_dict(self, folder: Path | None) -> dict[str, Any]:
        """Return the file as a job in this folder has it, for other people's eyes without one."""
        roles = {key: [each.name for each in self.columns if each.kind == kind] for kind, key in _ROLES.items()}
        found = {
            "party": self.party,
            "path": _path_from(folder, self.sample.path),
            "id": self.id,
            "label": self.label and self.label.column,
            "unit": self.unit,
            **roles,
            "date_order": self.date_order if self.date_order != "year" else None,
            "missing": ["", *self.missing] if self.missing else None,
        }
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True)
class JobDraft:
    """A job, or the part of one that one side can write, before it is agreed on; `epsilon` as the label party says.

    `other` is the part `data` that the other side has sent.
    """

    features: tuple[FileDraft, ...]
    label: FileDraft | None
    epsilon: float = 1.0
    other: Mapping[str, Any] = field(default_factory=dict)
    aligned: bool = False

    @property
    def classes(self) -> LabelGuess | None:
        """The label and its classes, where the label party's table is here."""
        return None if self.label is None else self.label.label

    @property
    def files(self) -> tuple[FileDraft, ...]:
        """The tables that are here, the label party's last."""
        return (*self.features, *([] if self.label is None else [self.label]))

    @property
    def is_complete(self) -> bool:
        """Whether the tables of all parties are described."""
        return all(key in self.data(None) for key in ("features", LABEL_PARTY))

    def data(self, folder: Path | None) -> dict[str, Any]:
        """Return the part `data` of a job in this folder, for other people's eyes without one; what is not here is
        left out."""
        found: dict[str, Any] = {"source": "table", "features": None, LABEL_PARTY: None, **self.other}
        if self.features:
            found["features"] = [file.as_dict(folder) for file in self.features]
        if self.label is not None and self.classes is not None:
            found[LABEL_PARTY] = self.label.as_dict(folder)
            found |= {"classes": len(self.classes.counts)} if len(self.classes.counts) > 2 else {}
            found |= {"class_values": list(self.classes.values)} if self.classes.values is not None else {}
        found |= {"alignment": {"mode": "both"}} if self.aligned else {}
        return {key: value for key, value in found.items() if value is not None}

    def content(self, folder: Path | None) -> dict[str, Any]:
        """Return what stands in the job, in this folder; without one, as the other side may see it."""
        rows = min(file.sample.rows for file in self.files)
        batch = max(_SMALLEST_BATCH, 2 ** round(math.log2(rows / _STEPS_AN_EPOCH)))
        parts = {
            "data": self.data(folder),
            "privacy": {"epsilon": self.epsilon} if self.is_complete or self.label else {},
            "method": "auto" if self.is_complete else None,
            "training": {"batch_size": batch} if rows < _USUAL_FROM else {},
        }
        return {name: part for name, part in parts.items() if part}

    def texts(self, folder: Path) -> dict[Path, str]:
        """Return the text of each file to be written in a folder: the job, or what the other side needs to make it,
        and the local files of the parties that are here."""
        name = "job" if self.is_complete else "features.part" if self.label is None else "labels.part"
        found = {folder / f"{name}.yaml": _text(_JOB, self.content(folder if self.is_complete else None))}
        for file in self.files:
            local = {"party": file.party, "data": _path_from(folder, file.sample.path)}
            local |= {"listen" if file.party == LABEL_PARTY else "connect": "127.0.0.1:7443"}
            local |= {"certificates": f"certs/{file.party}"}
            limit = {"max_epsilon": self.epsilon} if file.party == LABEL_PARTY else {}
            found[folder / f"{file.party}.yaml"] = _text(_LOCAL, {**local, **limit})
        return found


def _path_from(folder: Path | None, path: Location) -> str:
    """Return where a table lies, as a file in this folder says it; without a folder, its name alone."""
    if folder is None:
        return path.name
    return os.path.relpath(path, folder) if isinstance(path, Path) else path.text


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


def draft_tables(
    features: Sequence[Sample], label: Sample | None, ids: Sequence[str] = (), label_column: str | None = None
) -> JobDraft:
    """Describe the tables of the parties that are here; of `ids` each table takes the first that it has."""
    samples = [*features, *([] if label is None else [label])]
    present = list(dict.fromkeys(name for sample in samples for name in sample.columns))
    for name in (*ids, *([] if label_column is None else [label_column])):
        if name not in present:
            raise DataError(f"there is no column {name!r}; the columns are {', '.join(map(repr, present))}")
    guesses = [guessing.guess_columns(sample) for sample in samples]
    id_columns = _named_ids(samples, ids) if ids else guessing.guess_ids(samples, guesses)
    at_label = None if label is None else _labels(label, guesses[-1], id_columns[-1], label_column)
    for known in guesses:  # one table may hold all
        if at_label is not None and at_label.label is not None and (name := at_label.label.column) in known:
            known[name] = replace(known[name], kind=None, reason="called as the label")
    names = ["feature"]
    if len(features) != 1:  # those of their files, where these differ
        stems = [re.sub(r"\W+", "-", sample.path.name.partition(".")[0]).strip("-").lower() for sample in features]
        usable = [stem and stem != LABEL_PARTY and stems.count(stem) == 1 for stem in stems]
        names = [stem if usable[at] else f"feature-{at + 1}" for at, stem in enumerate(stems)]
    drafts = []
    for name, sample, known, id_column in zip(names, features, guesses, id_columns, strict=False):
        columns = tuple(column for column in known.values() if column.name != id_column)
        if not any(column.kind for column in columns):
            raise DataError(f"{sample.path}: no column can be learned from")
        drafts.append(FileDraft(name, sample, id_column, columns))
    return JobDraft(tuple(drafts), at_label)


def _named_ids(samples: Sequence[Sample], ids: Sequence[str]) -> list[str]:
    for sample in samples:
        if not any(name in sample.columns for name in ids):
            raise DataError(f"{sample.path}: has no column {' or '.join(map(repr, ids))}; name its id too")
    return [next(name for name in ids if name in sample.columns) for sample in samples]


def _labels(sample: Sample, guesses: dict[str, ColumnGuess], id_column: str, label_column: str | None) -> FileDraft:
    """Describe the label party's table: what it has beside labels is not used until somebody names it in the job.

    Such columns are often known only after the label, or made from it.
    """
    label = guessing.guess_label(sample, id_column, label_column)
    unlabelled = sample.rows - sum(label.counts)
    if unlabelled:
        raise DataError(
            f"{sample.path}: {unlabelled:,} of {sample.rows:,} records have no label in column {label.column!r}, and "
            "training needs one: remove these rows, and the job will train on the records that both tables have; or, "
            "if the labels are to come while it trains, write a job with `labels: arriving`"
        )
    unit = guessing.guess_unit(sample, id_column, label.column)
    unused = [replace(guess, kind=None, reason="not used") for guess in guesses.values()]
    columns = tuple(column for column in unused if column.name not in (id_column, label.column, unit))
    return FileDraft(LABEL_PARTY, sample, id_column, columns, label, unit)


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

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.Node:
        """Write a list of plain values in one line."""
        return super().represent_sequence(tag, sequence, not any(isinstance(value, dict) for value in sequence))


def _text(head: str, content: Mapping[str, Any]) -> str:
    """Return the text of a file; keys that a newcomer will ask about have a comment."""

    def with_comment(found: re.Match[str]) -> str:
        comment = _COMMENTS.get(found[2])
        return found[0] if comment is None else f"{found[1]}# {comment}\n{found[0]}"

    text = yaml.dump(dict(content), Dumper=_Tidy, sort_keys=False, allow_unicode=True, width=100)
    return f"# {head}\n" + re.sub(r"^( *)(\w+):", with_comment, text, flags=re.MULTILINE)
