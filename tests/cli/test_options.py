"""The commands stay few, their options too, and an option means the same in every command that has it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tpsl.cli.main import app

MOST_COMMANDS, MOST_OPTIONS = 30, 200
"""Of all commands together, `tpsl research` included, each option counted in every command that has it."""


def commands(group: Any, context: Any) -> Iterator[tuple[str, Any]]:
    """All commands below a group that do something, each with its parameters."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        below = command.context_class(command, info_name=name, parent=context)
        if hasattr(command, "list_commands"):
            yield from commands(command, below)
        else:
            yield below.command_path, command.get_params(below)


@pytest.fixture(scope="module")
def parameters() -> dict[str, list[Any]]:
    """The parameters of each command."""
    root: Any = typer.main.get_command(app)
    return dict(commands(root, root.make_context("tpsl", ["help"])))


@pytest.fixture(scope="module")
def options(parameters: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """All options by name, each by the command that has it."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for command, known in parameters.items():
        for parameter in known:
            if parameter.param_type_name == "option":
                for flag in parameter.opts:
                    found[flag][command] = parameter
    return found


def test_commands_and_options_are_few(parameters: dict[str, list[Any]]) -> None:
    assert "tpsl research paper" in parameters
    assert len(parameters) <= MOST_COMMANDS
    assert sum(each.param_type_name == "option" for known in parameters.values() for each in known) <= MOST_OPTIONS


def kind(option: Any) -> str:
    element = re.sub(r"^list\[(.*)\]$", r"\1", str(option.bare_type()))
    return "flag" if option.is_flag else "number" if element in ("int", "float") else "text"


def test_an_option_takes_the_same_in_every_command(options: dict[str, dict[str, Any]]) -> None:
    shared = {flag: {kind(option) for option in by_command.values()} for flag, by_command in options.items()}
    assert {flag: kinds for flag, kinds in shared.items() if len(kinds) > 1} == {}


def test_what_an_option_takes_is_a_word(parameters: dict[str, list[Any]]) -> None:
    for command, known in parameters.items():
        for parameter in known:
            if parameter.param_type_name == "option" and not parameter.is_flag:
                assert re.fullmatch(r"[A-Z:=\[\]]+", parameter.metavar or ""), (command, parameter.opts)


def test_what_may_be_repeated_has_no_second_name_for_many(options: dict[str, dict[str, Any]]) -> None:
    """`--labels` is a file: it is no list of what its singular takes."""
    plurals = {flag for flag in options if f"{flag}s" in options}
    assert plurals <= {"--label"}


def test_a_short_name_stands_for_one_option(options: dict[str, dict[str, Any]]) -> None:
    short = {
        flag: {max(option.opts, key=len) for option in by.values()} for flag, by in options.items() if len(flag) == 2
    }
    assert short == {"-h": {"--help"}}
