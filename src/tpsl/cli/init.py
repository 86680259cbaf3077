"""`tpsl init`: from two tables that nobody prepared to a job, and to a local file for each party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tpsl.cli.console import JsonFlag, answer, notice, progress_bar
from tpsl.cli.shared_options import with_options

if TYPE_CHECKING:
    from tpsl.cli.drafting import FileDraft, Wishes
    from tpsl.cli.guessing import Sample
    from tpsl.cli.init_files import JobDraft
    from tpsl.data.check import DataReport

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
            metavar="FEATURES… LABELS", help="Tables (CSV or Parquet): the feature parties', then the label party's."
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
    from tpsl.cli.drafting import draft_tables
    from tpsl.cli.init_files import JobDraft, read_part, require_new
    from tpsl.cli.init_questions import ask_for_epsilon, ask_for_wishes, on_terminal
    from tpsl.cli.init_report import as_dict, findings, guesses, notes, written
    from tpsl.files import make_private_folder, write_atomically

    here = _samples(files or [], features, labels)
    given = context.meta[_GIVEN]
    wishes, epsilon, other = _wishes(given), given["epsilon"], read_part(part)
    draft = draft_tables(*here, wishes)
    if epsilon is not None and draft.label is None:
        raise ValueError("--epsilon: how private labels are is for the label party to say, in its own `tpsl init`")
    require_new(JobDraft(draft, epsilon, other).texts(out))
    if not json:
        answer(False, {}, guesses(draft))
    if on_terminal() and not (yes or json):
        wishes = ask_for_wishes(draft, wishes, lambda changed: draft_tables(*here, changed))
        epsilon = ask_for_epsilon() if epsilon is None and draft.label is not None else epsilon
        draft = draft_tables(*here, wishes)
    job, report = _checked(JobDraft(draft, epsilon, other))
    texts = job.texts(out)
    make_private_folder(out.absolute())
    for path, text in texts.items():
        write_atomically(path, text.encode())
    for sentence in notes(draft, wishes):
        notice(sentence)
    found = {"files": [str(path) for path in texts], **as_dict(draft, report)}
    answer(json, found, [*findings(report), *written(job, list(texts), report)])
    if not report.passed:
        raise typer.Exit(1)


def _samples(files: Sequence[str], features: str | None, labels: str | None) -> tuple[list[Sample], Sample | None]:
    """Return the first records of the feature parties' tables and of the label party's, of those that are here."""
    from tpsl.cli.guessing import sample_of
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
    from tpsl.cli.drafting import Wishes

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

    Of a part of a job only the classes are: it takes both sides to know what else to look for.
    """
    from tpsl.cli.data_check import tell_of_rare_labels
    from tpsl.cli.drafting import LABEL
    from tpsl.data.check import check_data
    from tpsl.data.rawtable import FIND_COMMON_RECORDS

    if not job.is_complete:
        return job, _alone(job)
    agreed = job.job()
    with progress_bar("reading") as progress:
        report = check_data(agreed.data, progress=progress)
    for party, common in report.common_ids.items():
        if not common:
            ids = {file.party: file for file in job.tables.files}
            raise ValueError(
                f"{_id_example(ids[party])} and {_id_example(ids[LABEL])} have no value in common: ids must be "
                "written in the same way in both tables; --id names other columns"
            )
    if report.common_ids:
        report.findings = [each for each in report.findings if FIND_COMMON_RECORDS not in each.text]
        job = replace(job, aligned=True)
    tell_of_rare_labels(agreed, report)
    return job, report


def _alone(job: JobDraft) -> DataReport:
    """Return what the label party should know of its classes, which its whole table tells; nothing for others."""
    from tpsl.data.check import DataReport
    from tpsl.data.config import TableData
    from tpsl.training.job import PrivacyConfig
    from tpsl.training.rare_labels import rare_label_warning

    report, table, label = DataReport(), job.tables.label, job.tables.guessed_label
    if table is not None and label is not None and table.sample.is_whole:
        trained = 1 - TableData.model_fields["test_fraction"].default
        classes = {name: round(trained * count) for name, count in zip(label.names, label.counts, strict=True)}
        if warning := rare_label_warning(PrivacyConfig(epsilon=job.agreed_epsilon), classes, split=True):
            report.warn(table.party, warning)
    return report


def _id_example(file: FileDraft) -> str:
    return f"{file.id!r} of {file.sample.path.name} (as {str(file.sample.columns[file.id][0])!r})"
