"""The command `tpsl`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tpsl import __version__
from tpsl.cli import console, examine, init, party_commands, predict, train, vault_commands
from tpsl.cli.console import STATUS, Report, answer, complain, print_json, warn
from tpsl.cli.flags import JsonFlag, all_keys, argument, flag, option
from tpsl.error_codes import code_of
from tpsl.registry import Registry, use

# Read when PyTorch is imported, which no command has done yet. Threads that spin while they wait for each other make
# a step eight times slower as soon as anything else runs on the machine; on an idle one sleeping cost nothing.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

COMMANDS: Registry[typer.Typer] = Registry("command")
"""Groups of commands that installed packages bring, by entry points of the group `tpsl.commands`."""
_INSTALLED = "From installed packages"
_INTERRUPTED = 130  # what typer makes of Ctrl-C


def _group(help: str, **commands: Callable[..., None]) -> typer.Typer:
    group = typer.Typer(help=help, no_args_is_help=True)
    group.callback()(lambda: None)  # a group of one command is a group too
    for name, command in commands.items():
        group.command(name)(command)
    return group


def explain(
    context: typer.Context,
    topic: Annotated[
        list[str] | None, argument("TOPIC…", "The word `keys`, then words in their names; or a command.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Explain a command, or list the keys of a job and of a local file as --set takes them.

    Each key with what it means, its values and its default. Example: tpsl help keys epochs local
    """
    if topic and topic[0] == "keys":
        _list_keys(topic[1:], json)
        return
    printed = io.StringIO()
    with redirect_stdout(printed) if json else nullcontext():
        root: Any = context.find_root().command
        root.main([*(topic or []), "--help"], prog_name="tpsl", standalone_mode=False)
    answer(json, {"help": printed.getvalue()}, [])


def _list_keys(words: list[str], json: bool) -> None:
    found = [key for key in all_keys() if not words or any(word in key.name for word in words)]
    if not found:
        raise ValueError(f"no key has {' or '.join(words)} in its name")
    names = ("name", "source", "values", "default", "description")
    facts = [{name: str(getattr(key, name)) for name in names} for key in found]
    lines = [
        f"{key.name}{f' ({key.source})' if key.source else ''}: {key.values}"
        f"{f'; default {key.default}' if key.default else ''}\n    {key.description}"
        for key in found
    ]
    if any(key.name.startswith("data.features[]") for key in found):
        lines.append("data.label takes the keys of data.features[] too, as data.label.path")
    answer(json, {"keys": facts}, lines)


PANELS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Begin": {"init": init.init, "demo": train.demo, "check": examine.check},
    "Train": {
        "train": train.train,
        "label": _group(
            "The label party: has the labels, listens, sends perturbed gradients.",
            serve=party_commands.serve,
            evaluate=party_commands.evaluate,
        ),
        "feature": _group("A feature party: has features, connects, sends embeddings.", join=party_commands.join),
        "align": party_commands.align,
        "tune": train.tune,
    },
    "Use a model": {"predict": predict.predict, "score": predict.score, "export": predict.export},
    "Trust": {
        "report": examine.report,
        "ui": examine.ui,
        "vault": _group(
            "Keep labels, release each one once, and account for it (label party).",
            add=vault_commands.add,
            release=vault_commands.release,
            ledger=vault_commands.ledger,
            verify=vault_commands.verify,
            statement=vault_commands.statement,
            backup=vault_commands.backup,
            move=vault_commands.move,
        ),
        "attack": examine.attack,
        "audit": examine.audit,
    },
    "Operate": {"certs": party_commands.certs, "plan": examine.plan, "help": explain},
}
"""The commands as help lists them, those of every day first."""


class _Commands(TyperGroup):
    """The commands of `PANELS`, and after them those of `COMMANDS`; their help shows words and not Python's types."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*(name for names in PANELS.values() for name in names), *COMMANDS.names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in COMMANDS:
            command = typer.main.get_command(COMMANDS.get(cmd_name))
            command.name, command.rich_help_panel = cmd_name, _INSTALLED  # type: ignore[attr-defined]
        if command is not None:
            _show_words(command, ctx)
        return command

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _show_words(command: Any, ctx: Any) -> None:
    _without_types(command.get_params(command.context_class(command, parent=ctx)))
    for below in getattr(command, "commands", {}).values():
        _show_words(below, ctx)


def _without_types(parameters: list[Any]) -> list[Any]:
    """Return parameters of which help shows no type: an option has its word, flags and arguments have a name alone."""
    for parameter in parameters:
        if parameter.param_type_name == "argument" or parameter.is_flag:
            parameter.display_type_rich = lambda ctx: None
    return parameters


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
for panel, name, command in ((panel, *each) for panel, commands in PANELS.items() for each in commands.items()):
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, rich_help_panel=panel)
    else:
        app.command(name, rich_help_panel=panel)(command)


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    modules: Annotated[
        list[str] | None,
        option("MODULE", "Import modules that register your parts, as TPSL_USE=a,b does.", "--use", envvar="TPSL_USE"),
    ] = None,
    version: Annotated[bool, flag("--version", "Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    use(name.strip() for names in modules or () for name in names.split(",") if name.strip())
    if context.invoked_subcommand is None:
        first = {
            "see it work": "tpsl demo",
            "your own files": "tpsl init features.csv labels.csv",
            "two organisations": "tpsl certs job.yaml, tpsl label serve, tpsl feature join",
        }
        answer(False, {}, Report("Train one network, and prove how little the labels leak", first))
        context.get_help()  # prints it


def main() -> None:
    """Run a command; an error the user can do something about is one sentence, and with `--json` an object too.

    Exit status: 1 for an error, 2 for an option that does not exist or has no such value, 130 for an interruption, 143
    for a long-running command that was told to end (SIGTERM).
    """
    console.printed_json.clear()
    try:
        status = app(prog_name="tpsl", standalone_mode=False)
    except typer.TyperException as error:
        status = error.exit_code
        if error.format_message():  # that of a group without a command is empty: its help was printed
            _fail("usage", error.format_message())
    except (ValueError, OSError) as error:
        status = 1
        _fail(code_of(error), str(error) or type(error).__name__)
    except Exception as error:  # a fault of ours: the traceback is for a report of it
        _tell_programs("internal", f"{type(error).__name__}: {error}")
        raise
    if status == _INTERRUPTED:
        warn("interrupted")
    if status:
        code = {_INTERRUPTED: "interrupted", STATUS: "terminated"}.get(status, "failed")
        _tell_programs(code, f"ended with exit status {status}")
    sys.exit(status)


def _fail(code: str, message: str) -> None:
    complain(f"error: {message}")
    _tell_programs(code, message)


def _tell_programs(code: str, message: str) -> None:
    """Print the object of an error, unless nobody asked for JSON or the command has printed its own."""
    if "--json" in sys.argv[1:] and not console.printed_json:
        print_json({"error": {"code": code, "message": " ".join(message.split())}})
