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
    certs,
    console,
    demo,
    examine,
    help_topics,
    init,
    party_commands,
    predict,
    preview,
    report,
    score,
    train,
    tune,
    vault_commands,
    vault_labels,
)
from tpsl.cli.console import Report, answer, complain, print_json, warn
from tpsl.cli.flags import flag, option
from tpsl.cli.termination import STATUS
from tpsl.error_codes import code_of
from tpsl.registry import Registry, use

# Read when PyTorch is imported, which no command has done yet. Threads that spin while they wait for each other make
# a step eight times slower as soon as anything else runs on the machine; on an idle one sleeping cost nothing.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

COMMANDS: Registry[typer.Typer] = Registry("command")
"""Groups of commands that installed packages bring, by entry points of the group `tpsl.commands`."""


PANELS = {
    "Begin": ("init", "demo", "check"),
    "Train": ("train", "label", "feature", "align", "tune"),
    "Use a model": ("predict", "score", "export"),
    "Trust": ("report", "ui", "vault", "attack", "audit"),
    "Operate": ("certs", "plan", "help"),
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
            _without_types_below(command, ctx)
        return command

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    """Return parameters whose help shows words, not Python's types: nothing after a flag or an argument's name."""
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
        elif parameter.is_flag:
            parameter.metavar = ""
    return parameters


def _without_types_below(command: Any, ctx: Any) -> None:
    _without_types(command.get_params(command.context_class(command, parent=ctx)))
    for below in getattr(command, "commands", {}).values():
        _without_types_below(below, ctx)


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
label = typer.Typer(no_args_is_help=True, help="The label party: has the labels, listens, sends perturbed gradients.")
label.command("serve")(party_commands.serve)
label.command("evaluate")(party_commands.evaluate)
feature = typer.Typer(help="A feature party: has features, connects, sends embeddings.", no_args_is_help=True)
feature.command("join")(party_commands.join)
feature.callback()(lambda: None)  # a group of one command is a group too
vault = typer.Typer(help="Keep labels, release each one once, and account for it (label party).", no_args_is_help=True)
vault.command("add")(vault_labels.add)
vault.command("release")(vault_labels.release)
vault.command("ledger")(vault_commands.ledger)
vault.command("verify")(vault_commands.verify)
vault.command("statement")(vault_commands.statement)
vault.command("backup")(vault_commands.backup)
vault.command("move")(vault_commands.move)
for name, group in (("label", label), ("feature", feature), ("vault", vault)):
    app.add_typer(group, name=name)
for name, command in (
    ("init", init.init),
    ("demo", demo.demo),
    ("check", preview.check),
    ("train", train.train),
    ("align", align.align),
    ("tune", tune.tune),
    ("predict", predict.predict),
    ("score", score.score),
    ("export", predict.export),
    ("report", report.report),
    ("ui", report.ui),
    ("attack", examine.attack),
    ("audit", examine.audit),
    ("certs", certs.certs),
    ("plan", preview.plan),
    ("help", help_topics.explain),
):
    app.command(name)(command)

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
        option(
            "MODULE",
            "Import a module that registers parts of your own; may be repeated. TPSL_USE names some too, separated by "
            "commas.",
            "--use",
            envvar="TPSL_USE",
            show_envvar=False,
        ),
    ] = None,
    version: Annotated[
        bool, flag("--version", "Print the version and exit.", callback=_version, is_eager=True)
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
    """Run a command; an error the user can do something about is one sentence, and with `--json` an object too.

    Exit status: 1 for an error, 2 for an option that does not exist or has no such value, 130 for an interruption, 143
    for a long-running command that was told to end (SIGTERM).
    """
    console.printed_json.clear()
    try:
        status = app(prog_name="tpsl", standalone_mode=False)
    except typer.TyperException as error:
        # The help that a group without a command prints is an "error" without a message.
        if error.format_message():
            _fail("usage", error.format_message())
        status = error.exit_code
    except (ValueError, OSError) as error:
        _fail(code_of(error), str(error) or type(error).__name__)
        status = 1
    except Exception as error:  # a fault of ours: the traceback is for a report of it
        _tell_programs("internal", f"{type(error).__name__}: {error}")
        raise
    if status == _INTERRUPTED:
        warn("interrupted")
    if status:
        names = {_INTERRUPTED: "interrupted", STATUS: "terminated"}
        _tell_programs(names.get(status, "failed"), f"ended with exit status {status}")
    sys.exit(status)


def _fail(code: str, message: str) -> None:
    complain(f"error: {message}")
    _tell_programs(code, message)


def _tell_programs(code: str, message: str) -> None:
    """Print the object of an error, unless nobody asked for JSON or the command has printed its own."""
    if "--json" in sys.argv[1:] and not console.printed_json:
        print_json({"error": {"code": code, "message": " ".join(message.split())}})
