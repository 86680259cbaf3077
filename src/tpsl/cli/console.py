"""What every command shares: results on stdout, everything else on stderr, one sentence for an error.

With `--json` a command prints exactly one JSON object on stdout. Progress and notices go to stderr in either case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from tpsl.files import for_json
from tpsl.progress import Progress

stdout = Console()
stderr = Console(stderr=True)


def _complete_run(incomplete: str) -> list[str]:
    """Return the run folders, here and one folder down, whose path begins like this."""
    found = (job.parent for depth in ("*", "*/*") for job in Path().glob(f"{depth}/job.yaml"))
    return [str(run) for run in sorted(found) if str(run).startswith(incomplete)]


RunArgument = Annotated[Path, typer.Argument(help="Run folder.", autocompletion=_complete_run)]
ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Run folder, or that of a search, whose committee is the model then.",
        autocompletion=_complete_run,
    ),
]
RunsArgument = Annotated[
    list[Path], typer.Argument(help="Run folders.", autocompletion=_complete_run, show_default=False)
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object; numbers that JSON does not have (infinity, NaN) become null."""
    typer.echo(json.dumps(for_json(content), ensure_ascii=False))


def answer(as_json: bool, content: Mapping[str, Any], for_people: Iterable[str | RenderableType]) -> None:
    """Print the result of a command: one JSON object, or its lines and tables for people."""
    if as_json:
        print_json(content)
        return
    for part in for_people:
        if isinstance(part, str):
            say(part)
        else:
            stdout.print(part)


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
