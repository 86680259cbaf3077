"""The command `tpsl`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from typer.core import TyperGroup

from tpsl import __version__
from tpsl.cli import (
    align,
    attack,
    audit,
    certs,
    data,
    data_check,
    demo,
    embed,
    evaluate,
    export,
    init,
    joint_tune,
    learn,
    list_keys,
    plan,
    predict,
    report,
    score,
    train,
    tune,
    two_parties,
    ui,
    vault_commands,
)
from tpsl.cli.console import Report, answer, complain, warn
from tpsl.registry import Registry, use

# Read when PyTorch is imported, which no command has done yet. Threads that spin while they wait for each other make
# a step eight times slower as soon as anything else runs on the machine; on an idle one sleeping cost nothing.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

COMMANDS: Registry[typer.Typer] = Registry("command")
"""Groups of commands that installed packages bring, by entry points of the group `tpsl.commands`."""


PANELS = {
    "Begin": ("init", "demo", "data"),
    "Train": ("train", "label", "feature", "align", "learn", "tune"),
    "Use a model": ("predict", "export"),
    "Trust": ("report", "ui", "vault", "attack", "audit"),
    "Operate": ("certs", "plan", "keys"),
}
"""The commands as help lists them, those of every day first."""
_INSTALLED = "From installed packages"


class _Commands(TyperGroup):
    """The commands of `PANELS`, and after them those of `COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*(name for names in PANELS.values() for name in names if name in self.commands), *COMMANDS.names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in COMMANDS:
            command = typer.main.get_command(COMMANDS.get(cmd_name))
            command.name = cmd_name
        if command is not None:
            found = (panel for panel, names in PANELS.items() if cmd_name in names)
            command.rich_help_panel = next(found, _INSTALLED)  # type: ignore[attr-defined]
        return command


app = typer.Typer(
    name="tpsl",
    cls=_Commands,
    help="Train one network across two organisations, one with the features, one with the labels, "
    "with a proof of how little the labels leak.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("init", cls=init.COMMAND)(init.init)
data.app.command("check", cls=data_check.COMMAND)(data_check.check)
app.add_typer(data.app, name="data")
app.command("train", cls=train.COMMAND)(train.train)
two_parties.label_app.command("evaluate", cls=evaluate.COMMAND)(evaluate.evaluate)
two_parties.label_app.command("predict", cls=predict.LABEL_COMMAND)(predict.label_predict)
two_parties.feature_app.command("predict", cls=predict.FEATURE_COMMAND)(predict.feature_predict)
two_parties.label_app.command("tune", cls=joint_tune.LABEL_COMMAND)(joint_tune.label_tune)
two_parties.feature_app.command("tune", cls=joint_tune.FEATURE_COMMAND)(joint_tune.feature_tune)
two_parties.label_app.command("score", cls=score.COMMAND)(score.score)
two_parties.feature_app.command("embed", cls=embed.COMMAND)(embed.embed)
app.add_typer(two_parties.label_app, name="label")
app.add_typer(two_parties.feature_app, name="feature")
app.command("align", cls=align.COMMAND)(align.align)
app.command("learn", cls=learn.COMMAND)(learn.learn)
app.command("tune", cls=tune.COMMAND)(tune.tune)
app.command("predict")(predict.predict)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("ui")(ui.ui)
app.add_typer(vault_commands.app, name="vault")
app.command("attack")(attack.attack)
app.command("audit", cls=audit.COMMAND)(audit.audit)
app.command("certs")(certs.certs)
app.command("plan", cls=plan.COMMAND)(plan.plan)
app.command("keys")(list_keys.list_keys)

_INTERRUPTED = 130  # what typer makes of Ctrl-C


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--use",
            metavar="MODULE",
            envvar="TPSL_USE",
            show_envvar=False,
            help="Import a module that registers parts of your own; may be repeated. TPSL_USE names some too, "
            "separated by commas.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    use(name.strip() for names in modules or () for name in names.split(",") if name.strip())
    if context.invoked_subcommand is None:
        answer(False, {}, _first_steps())


def _first_steps() -> Iterator[RenderableType]:
    """Say what to do first, and which commands there are."""
    yield from Report(
        "Train one network across two organisations, and prove how little the labels leak",
        {
            "see it work": "tpsl demo",
            "your own files": "tpsl init features.csv labels.csv",
            "two organisations": "tpsl certs job.yaml, tpsl label serve, tpsl feature join",
        },
    )
    installed = {_INSTALLED: COMMANDS.names()} if COMMANDS.names() else {}
    commands = {panel: ", ".join(names) for panel, names in {**PANELS, **installed}.items()}
    yield from Report("\nCommands (tpsl COMMAND --help explains one)", commands)


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
