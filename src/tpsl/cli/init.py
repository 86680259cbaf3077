"""`tpsl init`: from two tables that nobody prepared to a job, and to a local file for each party."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpsl.cli.console import answer, notice, progress_bar
from tpsl.cli.flags import EpsilonOption, JsonFlag, argument, flag, option

if TYPE_CHECKING:
    from tpsl.cli.drafting import FileDraft, TablesDraft, Wishes
    from tpsl.cli.guessing import Sample
    from tpsl.cli.init_files import JobDraft
    from tpsl.data.check import DataReport

DATE_ORDERS = ("year", "day", "month")


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
    wishes: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "Say what is in the tables; may be repeated. Keys: id (each of its names), label, positive (of two labels, "
            "the one whose probability is predicted), numeric, categorical, dates, drop, time (of a record: the latest "
            "are the test set), date_order (year: 2025-12-31, day: 31.12.2025, month: 12/31/2025). Values: columns, "
            "with commas between.",
            "--set",
        ),
    ] = None,
    out: Annotated[Path, option("FOLDER", "Folder to write to.")] = Path(),
    yes: Annotated[bool, flag("--yes", "Ask nothing, take the guesses.", "-y")] = False,
    json: JsonFlag = False,
) -> None:
    """Look at your tables, guess what their columns are, and write a job to train with.

    Nothing is sent anywhere. On a terminal you are asked about the guesses; options answer in advance. Example:

    tpsl init features.csv labels.csv
    """
    from tpsl.cli.drafting import draft_tables
    from tpsl.cli.init_files import JobDraft, as_dict, findings, guesses, notes, read_part, require_new, written
    from tpsl.files import make_private_folder, write_atomically

    here = _samples(files, party)
    said, other = _wishes(wishes or ()), read_part(part)
    draft = draft_tables(*here, said)
    if epsilon is not None and draft.label is None:
        raise ValueError("--epsilon: how private labels are is for the label party to say, in its own `tpsl init`")
    require_new(JobDraft(draft, epsilon, other).texts(out))
    if not json:
        answer(False, {}, guesses(draft))
    if on_terminal() and not (yes or json):
        said = ask_for_wishes(draft, said, lambda changed: draft_tables(*here, changed))
        epsilon = ask_for_epsilon() if epsilon is None and draft.label is not None else epsilon
        draft = draft_tables(*here, said)
    job, report = _checked(JobDraft(draft, epsilon, other))
    texts = job.texts(out)
    make_private_folder(out.absolute())
    for path, text in texts.items():
        write_atomically(path, text.encode())
    for sentence in notes(draft, said):
        notice(sentence)
    found = {"files": [str(path) for path in texts], **as_dict(draft, report)}
    answer(json, found, [*findings(report), *written(job, list(texts), report)])
    if not report.passed:
        raise typer.Exit(1)


def _samples(files: Sequence[str], party: str | None) -> tuple[list[Sample], Sample | None]:
    """Return the first records of the feature parties' tables and of the label party's, of those that are here."""
    from tpsl.cli.guessing import sample_of
    from tpsl.tables.locations import location_of

    if (len(files) == 1) != (party is not None):
        raise ValueError(
            "init takes the table of features and the table of labels; if you have only one of them, say "
            "--party feature or --party label"
        )
    samples = [sample_of(location_of(path)) for path in files]
    return (samples, None) if party == "feature" else (samples[:-1], samples[-1])


WISHES = ("id", "label", "positive", "numeric", "categorical", "dates", "drop", "time", "date_order")


def _wishes(texts: Sequence[str]) -> Wishes:
    """Return what `--set` says of the tables; columns of a key that comes twice are added."""
    from tpsl.cli.drafting import Wishes

    said: dict[str, list[str]] = {key: [] for key in WISHES}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in WISHES:
            raise typer.BadParameter(f"--set takes KEY=VALUE, with a key of {', '.join(WISHES)}; got {text!r}")
        said[key] += [value]

    def names(key: str) -> tuple[str, ...]:
        return tuple(name.strip() for name in ",".join(said[key]).split(",") if name.strip())

    def one(key: str) -> str | None:
        return said[key][-1] if said[key] else None

    order = one("date_order")
    if order not in (None, *DATE_ORDERS):
        raise typer.BadParameter(f"date_order is one of {', '.join(DATE_ORDERS)}, not {order!r}")
    return Wishes(
        ids=names("id"),
        label=one("label"),
        positive=one("positive"),
        numeric=names("numeric"),
        categorical=names("categorical"),
        dates=names("dates"),
        drop=names("drop"),
        time=one("time"),
        date_order=order,
    )


def _checked(job: JobDraft) -> tuple[JobDraft, DataReport]:
    """Return the job, with an alignment if the parties' ids differ, and what is strange about its data.

    Of a part of a job only the classes are: it takes both sides to know what else to look for.
    """
    from tpsl.cli.drafting import LABEL
    from tpsl.cli.preview import tell_of_rare_labels
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
                "written in the same way in both tables; --set id=COLUMN names other columns"
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


def on_terminal() -> bool:
    """Return whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_for_wishes(draft: TablesDraft, wishes: Wishes, redraft: Callable[[Wishes], TablesDraft]) -> Wishes:
    """Ask about what was guessed and not said on the command line; `redraft` guesses again after an answer."""
    if not wishes.ids:
        ids = [
            _one_of(f"Id column of {file.sample.path.name}", list(file.sample.columns), file.id) for file in draft.files
        ]
        if ids != [file.id for file in draft.files]:
            wishes = replace(wishes, ids=tuple(dict.fromkeys(ids)))
            draft = redraft(wishes)
    at_label, label = draft.label, draft.guessed_label
    if at_label is not None and label is not None:
        if wishes.label is None:
            columns = [name for name in at_label.sample.columns if name != at_label.id]
            wishes = replace(wishes, label=_one_of("Label column", columns, label.column))
            draft = redraft(wishes)
        wishes = _ask_for_positive(draft, wishes)
    if not wishes.drop:
        wishes = replace(wishes, drop=_ask_what_to_leave_out(draft))
    if draft.dates_in_all and wishes.time is None:
        column = draft.dates_in_all[0]
        if typer.confirm(f"Keep the latest records, by {column!r}, for the test?", default=False, err=True):
            wishes = replace(wishes, time=column)
    return wishes


def ask_for_epsilon() -> float:
    """Ask how private it shall be."""
    question = "ε: how much a noisy label may tell about the true one (0.5 is strong, 1 usual, 4 weak)"
    return float(typer.prompt(question, default=1.0, type=float, err=True))


def _ask_for_positive(draft: TablesDraft, wishes: Wishes) -> Wishes:
    label = draft.guessed_label
    if label is None or wishes.positive is not None or label.values is None or len(label.values) != 2:
        return wishes
    chosen = _one_of("Of which label is the probability predicted", label.values, label.values[-1], show=True)
    return replace(wishes, positive=chosen)


def _ask_what_to_leave_out(draft: TablesDraft) -> tuple[str, ...]:
    """Ask for columns, with commas between them, until all of them are there."""
    used = [column.name for file in draft.files for column in file.columns if column.kind is not None]
    while True:
        text = typer.prompt("Columns to leave out, with commas between", default="none", err=True)
        names = [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if name not in used]
        if not unknown:
            return tuple(names)
        typer.echo(f"there is no column {unknown[0]!r}; those that are used are {', '.join(used)}", err=True)


def _one_of(question: str, choices: Sequence[str], default: str, show: bool = False) -> str:
    while True:
        shown = f"{question} ({', '.join(choices)})" if show else question
        answer = str(typer.prompt(shown, default=default, err=True))
        if answer in choices:
            return answer
        typer.echo(f"{answer!r} is none of {', '.join(choices)}", err=True)
