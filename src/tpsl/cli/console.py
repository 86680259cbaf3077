"""What every command shares: results on stdout, everything else on stderr, one sentence for an error.

With `--json` a command prints exactly one JSON object on stdout. Progress and notices go to stderr in either case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from tpsl.files import for_json
from tpsl.progress import Progress

stdout = Console()
stderr = Console(stderr=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object; numbers that JSON does not have (infinity, NaN) become null."""
    typer.echo(json.dumps(for_json(content), ensure_ascii=False))


def say(text: str) -> None:
    """Print a line of the result on stdout, as it is: a path is neither wrapped nor read as markup."""
    _print_line(stdout, text)


def notice(text: str) -> None:
    """Tell the user something, on stderr."""
    _print_line(stderr, text, "dim")


def warn(text: str) -> None:
    """Warn the user, on stderr."""
    _print_line(stderr, f"warning: {text}", "bold yellow")


def complain(text: str) -> None:
    """Say what is wrong in one line, on stderr."""
    _print_line(stderr, " ".join(text.split()), "bold red")


def printable(text: str) -> str:
    """Return a text in which nothing moves the cursor or changes colours: a peer may have written part of it."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _print_line(console: Console, text: str, style: str | None = None) -> None:
    lines = "\n".join(printable(line) for line in text.splitlines())
    console.print(lines, style=style, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Show progress on stderr; yields what tasks tell it to."""
    with Bars(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=None, note="")

        def update(done: int, total: int, note: str) -> None:
            bar.update(task, completed=done, total=total or None, note=note)

        yield update
