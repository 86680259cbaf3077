"""What every command shares: results on stdout, everything else on stderr, one sentence for an error.

With `--json` a command prints exactly one JSON object on stdout. Progress and notices go to stderr in either case.
"""

from __future__ import annotations

import json
import math
import signal
import textwrap
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from tpsl.files import for_json
from tpsl.progress import Pace, Progress

stdout = Console()
stderr = Console(stderr=True)
printed_json: list[bool] = []
"""Whether this process has printed its JSON object: an error adds none to it."""
_COLUMNS, _MANY = 80, 100_000
FIRST_LOGGED_AFTER, _LONGEST_SILENCE = 10.0, 300.0
"""Seconds until a log gets the first line of progress, and between two lines at most."""
STATUS = 128 + signal.SIGTERM
"""The exit status that a shell gives to a program ended by SIGTERM."""


def from_here(path: str | Path) -> Path:
    """Return a path as a user would write it: relative to the current folder if it lies in it."""
    here, absolute = Path.cwd(), Path(path).absolute()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else absolute


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object; numbers that JSON does not have (infinity, NaN) become null."""
    printed_json.append(True)
    typer.echo(json.dumps(for_json(content), ensure_ascii=False))


Facts = dict[str, str | Path | None]
"""What a report states, each fact by its name; those without a value are left out."""


@dataclass(frozen=True)
class Report:
    """The result of a command as people read it: what came out, the facts, tables and sentences about them, and the
    commands to go on with.

    Facts are wrapped at words, except one that is a path. Commands are not: they are there to be copied.
    """

    headline: str
    facts: Mapping[str, str | Path | None] = field(default_factory=dict)
    next_steps: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[str | Table] = ()

    def __iter__(self) -> Iterator[str | Table | Text]:
        yield Text(_printable_lines(self.headline), "bold")
        facts = {name: value for name, value in self.facts.items() if value}
        width = max(map(len, [*facts, *self.next_steps]), default=0)
        for name, value in facts.items():
            lines = [str(value)]
            if isinstance(value, str):
                room = max(_COLUMNS - width - 4, _COLUMNS // 2)
                lines = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False)
            yield _fact(name, width, lines)
        yield from self.tables
        if self.next_steps:
            yield Text("Next", "bold")
        for name, command in self.next_steps.items():
            yield _fact(name, width, [command])


def _fact(name: str, width: int, lines: Sequence[str]) -> Text:
    return Text.assemble((f"  {name:<{width}}  ", "cyan"), f"\n{' ' * (width + 4)}".join(map(printable, lines)))


def slim_table(
    headings: Sequence[str], rows: Iterable[Sequence[str | Text]], *, numbers: Collection[str] = ()
) -> Table:
    """Return a table without a frame, for 80 columns; columns of `numbers` stand to the right and are never wrapped.

    Texts are shown as they are, not read as markup.
    """
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        is_number = heading in numbers
        table.add_column(Text(heading), justify="right" if is_number else "left", no_wrap=is_number)
    for row in rows:
        table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    return table


def answer(as_json: bool, content: Mapping[str, Any], for_people: Iterable[str | RenderableType]) -> None:
    """Print the result of a command: one JSON object, or its report, lines and tables for people."""
    if as_json:
        print_json(content)
        return
    for part in for_people:
        if isinstance(part, str):
            say(part)
        else:
            stdout.print(part, soft_wrap=isinstance(part, Text))


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


def _printable_lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.splitlines())


def _print_line(console: Console, text: str, style: str | None = None) -> None:
    console.print(_printable_lines(text), style=style, highlight=False, markup=False, soft_wrap=True)


def time_left(seconds: float | None, *, at_most: bool = False) -> str:
    """Return how long something will take, for people: about, or `at_most`; nothing where that is not known."""
    if seconds is None:
        return ""
    bound = "at most" if at_most else "about"
    if seconds < 50:
        return f"{bound} {max(math.ceil(seconds / 5) * 5, 5)} s left"
    if seconds < 5400:
        return f"{bound} {round(seconds / 60)} min left"
    return f"{bound} {seconds / 3600:.1f} h left"


@contextmanager
def progress_bar(title: str, *, may_end_early: bool = False) -> Iterator[Progress]:
    """Show progress on stderr, as a bar on a terminal and in a log as lines; yields what tasks tell.

    Of many, such as bytes, a percentage is shown. The first line of a log comes after ten seconds, the others ever more
    rarely, at least every five minutes.
    """
    pace, pause = Pace(30.0), FIRST_LOGGED_AFTER
    next_line = time.monotonic() + pause
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Bars(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(title, total=None, note="")

        def update(done: int, total: int, note: str) -> None:
            nonlocal pause, next_line
            share = "" if not total else f"{done:,}/{total:,}" if total < _MANY else f"{100 * done // total} %"
            if not bar.disable:
                pace.add(done)
                left = time_left(pace.seconds_left(total), at_most=may_end_early)
                shown = " ".join(filter(None, (share, note, left)))
                bar.update(task, completed=done, total=total or None, note=shown)
            elif time.monotonic() >= next_line:
                notice(" ".join(filter(None, (f"{title}:", share, note))))
                pause = min(2 * pause, _LONGEST_SILENCE)
                next_line = time.monotonic() + pause

        yield update


@contextmanager
def stoppable(advice: str, *, log_json: bool = False) -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, with the advice as the last line; its exit status is 143.

    With `log_json` the line is left to the log, which `tpsl.cli.live.Live` writes: each of its lines is a JSON object.
    """

    terminated: list[KeyboardInterrupt] = []

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is being closed is closed to the end
        terminated.append(KeyboardInterrupt(f"terminated; {advice}"))
        raise terminated[0]

    if threading.current_thread() is not threading.main_thread():  # only there Python has signals
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:  # a library may have made one of its own of what was raised above
        if not terminated:
            notice(advice)
            raise
        if not log_json:
            notice(str(terminated[0]))
        raise typer.Exit(STATUS) from None
    finally:
        signal.signal(signal.SIGTERM, before)
