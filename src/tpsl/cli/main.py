"""The command `tpsl`."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from tpsl import __version__
from tpsl.cli import (
    attack,
    audit,
    certs,
    data,
    demo,
    feature,
    label,
    report,
    train,
    tune,
    ui,
    vault,
)
from tpsl.cli.console import complain, warn

# Read when PyTorch is imported, which no command has done yet. Threads that spin while they wait for each other make
# a step eight times slower as soon as anything else runs on the machine; on an idle one sleeping cost nothing.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

app = typer.Typer(
    name="tpsl",
    help="Train one network across two organisations, one with the features, one with the labels, "
    "with a proof of how little the labels leak.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.add_typer(label.app, name="label")
app.add_typer(feature.app, name="feature")
app.command("certs")(certs.certs)
app.command("attack")(attack.attack)
app.command("audit")(audit.audit)
app.command("report")(report.report)
app.command("ui")(ui.ui)
app.command("tune")(tune.tune)
app.add_typer(data.app, name="data")
app.add_typer(vault.app, name="vault")
for _package in entry_points(group="tpsl.commands"):
    app.add_typer(_package.load(), name=_package.name, rich_help_panel="Of installed packages")

_INTERRUPTED = 130  # what typer makes of Ctrl-C


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command; an error the user can do something about is one sentence.

    Exit status: 1 for an error, 2 for an option that does not exist or has no such value, 130 for an interruption, 143
    for a long-running command that was told to end (SIGTERM).
    """
    try:
        status = app(prog_name="tpsl", standalone_mode=False)
    except typer.TyperException as error:
        # The help that a group without a command prints is an "error" without a message.
        if error.format_message():
            complain(f"error: {error.format_message()}")
        status = error.exit_code
    except (ValueError, OSError) as error:
        complain(f"error: {str(error) or type(error).__name__}")
        status = 1
    if status == _INTERRUPTED:
        warn("interrupted")
    sys.exit(status)
