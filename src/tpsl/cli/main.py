"""The command `tpsl`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tpsl import __version__
from tpsl.cli import (
    align,
    attack,
    audit,
    bench,
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
    vault,
)
from tpsl.cli.console import complain, warn
from tpsl.registry import Registry, use

# Read when PyTorch is imported, which no command has done yet. Threads that spin while they wait for each other make
# a step eight times slower as soon as anything else runs on the machine; on an idle one sleeping cost nothing.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

COMMANDS: Registry[typer.Typer] = Registry("command")
"""Groups of commands that installed packages bring, by entry points of the group `tpsl.commands`."""


class _WithInstalledCommands(TyperGroup):
    """The commands of this package, and after them those of `COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *COMMANDS.names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = super().get_command(ctx, cmd_name)
        if known is not None or cmd_name not in COMMANDS:
            return known
        group = typer.main.get_command(COMMANDS.get(cmd_name))
        group.name, group.rich_help_panel = cmd_name, _INSTALLED  # type: ignore[attr-defined]
        return group


app = typer.Typer(
    name="tpsl",
    cls=_WithInstalledCommands,
    help="Train one network across two organisations, one with the features, one with the labels, "
    "with a proof of how little the labels leak.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_TRAIN, _LOOK, _LABELS, _INSTALLED = "Train", "Look at runs", "Labels and data", "From installed packages"
app.command("demo", rich_help_panel=_TRAIN)(demo.demo)
app.command("init", cls=init.COMMAND, rich_help_panel=_TRAIN)(init.init)
app.command("align", cls=align.COMMAND, rich_help_panel=_TRAIN)(align.align)
app.command("train", cls=train.COMMAND, rich_help_panel=_TRAIN)(train.train)
two_parties.label_app.command("evaluate", cls=evaluate.COMMAND)(evaluate.evaluate)
two_parties.label_app.command("predict", cls=predict.LABEL_COMMAND)(predict.label_predict)
two_parties.feature_app.command("predict", cls=predict.FEATURE_COMMAND)(predict.feature_predict)
two_parties.label_app.command("tune", cls=joint_tune.LABEL_COMMAND)(joint_tune.label_tune)
two_parties.feature_app.command("tune", cls=joint_tune.FEATURE_COMMAND)(joint_tune.feature_tune)
two_parties.label_app.command("score", cls=score.COMMAND)(score.score)
two_parties.feature_app.command("embed", cls=embed.COMMAND)(embed.embed)
app.add_typer(two_parties.label_app, name="label", rich_help_panel=_TRAIN)
app.add_typer(two_parties.feature_app, name="feature", rich_help_panel=_TRAIN)
app.command("learn", cls=learn.COMMAND, rich_help_panel=_TRAIN)(learn.learn)
app.command("tune", cls=tune.COMMAND, rich_help_panel=_TRAIN)(tune.tune)
app.command("plan", cls=plan.COMMAND, rich_help_panel=_TRAIN)(plan.plan)
app.command("certs", rich_help_panel=_TRAIN)(certs.certs)
app.command("keys", rich_help_panel=_TRAIN)(list_keys.list_keys)
app.command("predict", cls=predict.COMMAND, rich_help_panel=_TRAIN)(predict.predict)
app.command("attack", rich_help_panel=_LOOK)(attack.attack)
app.command("audit", cls=audit.COMMAND, rich_help_panel=_LOOK)(audit.audit)
app.command("bench", rich_help_panel=_LOOK)(bench.bench)
app.command("report", rich_help_panel=_LOOK)(report.report)
app.command("ui", rich_help_panel=_LOOK)(ui.ui)
app.command("export", rich_help_panel=_LOOK)(export.export)
app.add_typer(vault.app, name="vault", rich_help_panel=_LABELS)
data.app.command("check", cls=data_check.COMMAND)(data_check.check)
app.add_typer(data.app, name="data", rich_help_panel=_LABELS)

_INTERRUPTED = 130  # what typer makes of Ctrl-C


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
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
