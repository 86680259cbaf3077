"""`tpsl init`: from two tables that nobody prepared to a job, and to a local file for each party."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tpsl.cli.console import JsonFlag, Report, answer, notice, progress_bar
from tpsl.cli.shared_options import with_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tpsl.cli.init_files import JobDraft
    from tpsl.data.check import DataReport
    from tpsl.data.drafting import FileDraft, TablesDraft, Wishes
    from tpsl.data.guessing import Sample

LABEL = "label"
_GIVEN = "what is said of columns"


def _option(text: str, metavar: str | None = None, kind: Any = str) -> Any:
    option = typer.Option(help=text, metavar=metavar, show_default=False, rich_help_panel="What is in the tables")
    return Annotated[kind | None, option]


COMMAND = with_options(
    {
        "id": _option("The id column; where tables call it differently, each of its names.", "COLUMN,…"),
        "label": _option("The label column.", "COLUMN"),
        "positive": _option("Of two labels, the one whose probability is predicted.", "VALUE"),
        "numeric": _option("Columns with numbers.", "COLUMN,…"),
        "categorical": _option("Columns with categories.", "COLUMN,…"),
        "dates": _option("Columns with dates.", "COLUMN,…"),
        "drop": _option("Columns to leave out.", "COLUMN,…"),
        "time": _option("Column with the time of a record, in each table: the latest are the test set.", "COLUMN"),
        "date_order": _option(
            "What dates as text begin with: 2025-12-31, 31.12.2025 or 12/31/2025.",
            kind=Literal["year", "day", "month"],
        ),
        "epsilon": _option("The ε of a noisy label; 1 if not given.", "X", float),
    },
    _GIVEN,
)


def init(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FEATURES… LABELS]", help="Tables (CSV or Parquet): the feature parties', then the label party's."
        ),
    ] = None,
    features: Annotated[
        str | None, typer.Option(metavar="TABLE", help="You are a feature party, and this table is all you have.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="TABLE", help="You are the label party, and this table is all you have.")
    ] = None,
    part: Annotated[
        Path | None, typer.Option("--with", metavar="FILE", help="The part of the job that the other side has sent.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path(),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing, take the guesses.")] = False,
    json: JsonFlag = False,
) -> None:
    """Look at your tables, guess what their columns are, and write a job to train with.

    Nothing is sent anywhere. On a terminal you are asked about the guesses; options answer in advance. Example:

    tpsl init features.csv labels.csv
    """
    from tpsl.cli.init_files import JobDraft, read_part, require_new
    from tpsl.cli.init_questions import ask_for_epsilon, ask_for_wishes, on_terminal
    from tpsl.data.drafting import draft_tables
    from tpsl.files import make_private_folder, write_atomically

    here = _samples(files or [], features, labels)
    given = context.meta[_GIVEN]
    wishes, epsilon, other = _wishes(given), given["epsilon"], read_part(part)
    draft = draft_tables(*here, wishes)
    if epsilon is not None and draft.label is None:
        raise ValueError("--epsilon: how private labels are is for the label party to say, in its own `tpsl init`")
    require_new(JobDraft(draft, epsilon, other).texts(out))
    if not json:
        answer(False, {}, _guesses(draft))
    if on_terminal() and not (yes or json):
        wishes = ask_for_wishes(draft, wishes, lambda changed: draft_tables(*here, changed))
        epsilon = ask_for_epsilon() if epsilon is None and draft.label is not None else epsilon
        draft = draft_tables(*here, wishes)
    job, report = _checked(JobDraft(draft, epsilon, other))
    texts = job.texts(out)
    make_private_folder(out.absolute())
    for path, text in texts.items():
        write_atomically(path, text.encode())
    for sentence in _notes(draft, wishes):
        notice(sentence)
    found = {"files": [str(path) for path in texts], **_as_dict(draft, report)}
    answer(json, found, [*_findings(report), *_written(job, list(texts), report)])
    if not report.passed:
        raise typer.Exit(1)


def _samples(files: Sequence[str], features: str | None, labels: str | None) -> tuple[list[Sample], Sample | None]:
    """Return the first records of the feature parties' tables and of the label party's, of those that are here."""
    from tpsl.data.guessing import sample_of
    from tpsl.tables.locations import location_of

    if len(files) == 1 or bool(files) == bool(features or labels):
        raise ValueError(
            "init takes the table of features and the table of labels; if you have only one of them, say "
            "--features TABLE or --labels TABLE"
        )
    *before, last = files or (features, labels)
    of_features = [sample_of(location_of(path)) for path in before if path is not None]
    return of_features, None if last is None else sample_of(location_of(last))


def _wishes(given: Mapping[str, Any]) -> Wishes:
    from tpsl.data.drafting import Wishes

    def names(key: str) -> tuple[str, ...]:
        return tuple(name.strip() for name in (given[key] or "").split(",") if name.strip())

    return Wishes(
        ids=names("id"),
        label=given["label"],
        positive=given["positive"],
        numeric=names("numeric"),
        categorical=names("categorical"),
        dates=names("dates"),
        drop=names("drop"),
        time=given["time"],
        date_order=given["date_order"],
    )


def _checked(job: JobDraft) -> tuple[JobDraft, DataReport]:
    """Return the job, with an alignment if the parties' ids differ, and what is strange about its data.

    Of a part of a job nothing is checked: it takes both sides to know what to look for.
    """
    from tpsl.data.check import DataReport, check_data

    if not job.is_complete:
        return job, DataReport()
    with progress_bar("reading") as progress:
        report = check_data(job.job().data, progress=progress)
    for party, common in report.common_ids.items():
        if not common:
            ids = {file.party: file for file in job.tables.files}
            raise ValueError(
                f"{_id_example(ids[party])} and {_id_example(ids[LABEL])} have no value in common: ids must be "
                "written in the same way in both tables; --id names other columns"
            )
    if not report.common_ids:
        return job, report
    report.findings = [each for each in report.findings if each.party not in report.common_ids or each.level != "error"]
    return replace(job, aligned=True), report


def _id_example(file: FileDraft) -> str:
    return f"{file.id!r} of {file.sample.path.name} (as {str(file.sample.columns[file.id][0])!r})"


def _guesses(draft: TablesDraft) -> Iterator[str | RenderableType]:
    """Yield what the tables seem to hold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from tpsl.data.guessing import SAMPLE_ROWS

    for file in draft.files:
        few = file.sample.rows < SAMPLE_ROWS
        records = f"{file.sample.rows:,} records" if few else f"the first {file.sample.rows:,} records"
        yield f"{file.sample.path} ({file.party}): {records}, id {file.id!r}"
        if file.label is not None:
            classes = ", ".join(
                f"{name} ({count:,})" for name, count in zip(file.label.names, file.label.counts, strict=True)
            )
            yield f"label {file.label.column!r}: {classes}"
        if file.columns:
            table = Table("column", "taken as", box=SIMPLE_HEAD)
            table.add_column("missing", justify="right")
            table.add_column("different", justify="right")
            for column in file.columns:
                taken = column.kind or f"– ({column.reason})"
                table.add_row(column.name, taken, f"{column.missing:,}", f"{column.distinct:,}")
            yield table


def _notes(draft: TablesDraft, wishes: Wishes) -> Iterator[str]:
    """Yield what a person should know of the guesses, and how to say otherwise."""
    for file in draft.files:
        unclear = [each.name for each in file.columns if each.kind == "date" and len(each.date_orders) > 1]
        if unclear and wishes.date_order is None:
            yield f"{', '.join(unclear)}: read with the day first; --date-order month if the month is"
    at_label, label = draft.label, draft.guessed_label
    if at_label is None or label is None:
        return
    if not label.is_sure and wishes.positive is None:
        yield f"predicted is the probability of {label.names[-1]!r}; --positive says otherwise"
    if at_label.unit:
        yield f"{at_label.unit!r} of the label party repeats: the ledger will state the largest ε of any of them"
    beside = [each.name for each in at_label.columns if each.kind is None and each.name not in wishes.drop]
    if beside:
        yield (
            f"not used of the label party: {', '.join(beside)}; what was known before the label can be named in "
            "--numeric, --categorical or --dates"
        )
    if draft.dates_in_all and wishes.time is None:
        yield f"to test on the latest records: --time {draft.dates_in_all[0]}"


def _as_dict(draft: TablesDraft, report: DataReport) -> dict[str, Any]:
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


def _findings(report: DataReport) -> Iterator[str]:
    for finding in report.findings:
        yield f"{finding.level}: {finding.text}"


def _written(job: JobDraft, files: Sequence[Path], report: DataReport) -> Report:
    """Return what was written, and what to do with it."""
    names = [str(file) for file in files]
    headline = f"Wrote {', '.join(names[:-1])} and {names[-1]}"
    if not job.is_complete:
        return Report(headline, _what_the_other_side_needs(job, files[0]))
    if not report.passed:
        return Report(f"{headline}, but the data have errors", {}, {"mend them, then": f"tpsl data check {files[0]}"})
    facts = {"the job": "names columns and classes, no contents: show it to the other side, and edit it as you like"}
    parties = [file.party for file in job.tables.files]
    if job.aligned:
        facts["records"] = "the parties' ids differ; training takes the common ones, and all parties learn which"
    if LABEL in parties and len(parties) > 1:
        return Report(headline, facts, _together(job, files[0]) | _apart(job, files[0], parties))
    facts["ids"] = "must be the same at both sides; if some differ, add `alignment: {mode: both}` under data"
    return Report(headline, facts, _apart(job, files[0], parties))


def _what_the_other_side_needs(job: JobDraft, part: Path) -> dict[str, str]:
    has_labels = job.tables.label is not None
    told = "of your columns and of the labels, no counts" if has_labels else "of your columns, no contents"
    theirs = "--features" if has_labels else "--labels"
    return {
        "send": f"{part} to the other side; it holds the names {told}",
        "there": f"tpsl init {theirs} TABLE --with {part.name} writes job.yaml, which both sides need",
    }


def _together(job: JobDraft, name: Path) -> dict[str, str]:
    """Return the commands with which one process is all parties."""
    align = {"find common records": f"tpsl align {name} --together"} if job.aligned else {}
    return align | {
        "train, in one process": f"tpsl train {name} --record-transcript --out runs/first",
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
    return found
