"""`--verbose`: the reasons of what a job leaves to tpsl, of every command that has some to say."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperCommand

from tpsl.cli.shared_options import with_options
from tpsl.progress import Notice, no_notice

_OPTIONS = {
    "verbose": Annotated[
        bool | None,
        typer.Option("--verbose", "-v", help="Also say why what 'auto' has chosen is best.", show_default=False),
    ]
}
_META = "tpsl.verbose"


def with_verbose(command: type[TyperCommand]) -> type[TyperCommand]:
    """Return the class of a command that takes `--verbose` too; its function asks `reasons` who is told of reasons."""
    return with_options(_OPTIONS, _META, command)


def reasons(context: typer.Context, notice: Notice) -> Notice:
    """Return who is told why something was chosen: `notice`, or nobody if the command was not asked to say it."""
    return notice if context.meta.get(_META, {}).get("verbose") else no_notice
