"""What `tpsl init` asks on a terminal: each question has the guess for an answer, which Enter accepts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tpsl.cli.drafting import TablesDraft, Wishes


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
