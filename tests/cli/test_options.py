"""One name for one thing: what an option means does not depend on the command that has it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tpsl.cli.main import app

NUMBER, TEXT, FLAG = "number", "text", "flag"
SHARED = {
    "--alignment": (TEXT, "folder of a party's alignment"),
    "--certs": (TEXT, "folder with a party's certificate"),
    "--class-value": (TEXT, "label that is a text"),
    "--classes": (NUMBER, "number of classes of the label"),
    "--compose": (FLAG, "permit a second release"),
    "--connect": (TEXT, "where the label party listens"),
    "--data": (TEXT, "data set"),
    "--deadline": (NUMBER, "seconds that a request may take"),
    "--device": (TEXT, "where this side computes"),
    "--epochs": (NUMBER, "how often each record is used"),
    "--epsilon": (NUMBER, "ε of a release"),
    "--for": (TEXT, "whose page it is"),
    "--from": (TEXT, "earlier run that training starts from"),
    "--handed": (TEXT, "folder of a hand-over"),
    "--head": (TEXT, "private or local"),
    "--help": (FLAG, "help"),
    "--http": (NUMBER, "port for this side's own applications"),
    "--id": (TEXT, "column with the record id"),
    "--insecure-loopback": (FLAG, "no TLS, on this machine only"),
    "--json": (FLAG, "one JSON object on standard output"),
    "--label": (TEXT, "column with the label"),
    "--labels": (TEXT, "file with the labels"),
    "--listen": (TEXT, "where the label party listens"),
    "--local": (TEXT, "a party's local file"),
    "--log": (TEXT, "where curves go"),
    "--log-json": (FLAG, "JSON lines on standard error"),
    "--max-epsilon": (NUMBER, "the most that a record may have spent"),
    "--mechanism": (TEXT, "how labels are made noisy"),
    "--method": (TEXT, "how the private head learns"),
    "--noise-seed": (NUMBER, "fixes the noise, which is then not private"),
    "--not-private": (FLAG, "permit what protects nothing"),
    "--only": (TEXT, "leave the other parts out"),
    "--out": (TEXT, "where the result is written"),
    "--party": (TEXT, "a party's name"),
    "--path": (TEXT, "the publisher's file"),
    "--processes": (NUMBER, "work done at the same time on this machine"),
    "--ray": (NUMBER, "workers on a Ray cluster"),
    "--record-transcript": (FLAG, "keep all that crossed the border"),
    "--records": (TEXT, "file with records"),
    "--returns": (TEXT, "the most that a feature party gets back"),
    "--rows": (NUMBER, "number of records"),
    "--seed": (NUMBER, "fixes what is drawn, never the noise"),
    "--seeds": (NUMBER, "number of seeds"),
    "--set": (TEXT, "any key"),
    "--since": (TEXT, "records from this time on"),
    "--space": (TEXT, "configurations of a search"),
    "--take-over": (FLAG, "wait for the ports of another process"),
    "--threads": (NUMBER, "CPU threads"),
    "--unit": (TEXT, "column with whom a record is about"),
    "--vault": (TEXT, "a vault"),
    "--verbose": (FLAG, "say the reasons too"),
    "--yes": (FLAG, "do not ask"),
}
"""What the options that several commands have take, and what they mean. A new one needs its line here."""


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for known in group.list_commands(None):
        command = group.get_command(None, known)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{name}{known} ")
        else:
            yield f"{name}{known}", command


@pytest.fixture(scope="module")
def options() -> dict[str, dict[str, Any]]:
    """All options by name, each by the command that has it."""
    root: Any = typer.main.get_command(app)
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, command in commands(root):
        for parameter in command.get_params(root.make_context("tpsl", ["keys"])):
            if parameter.param_type_name == "option":
                for flag in parameter.opts:
                    found[flag][name] = parameter
    return found


def kind(option: Any) -> str:
    if option.is_flag:
        return FLAG
    element = re.sub(r"^list\[(.*)\]$", r"\1", str(option.bare_type()))
    return NUMBER if element in ("int", "float") else TEXT


def test_an_option_takes_and_means_the_same_in_every_command(options: dict[str, dict[str, Any]]) -> None:
    shared = {flag: by_command for flag, by_command in options.items() if len(by_command) > 1 and flag.startswith("--")}
    assert len(shared) > 40
    assert set(shared) <= set(SHARED) <= set(options)
    assert {flag: {kind(option) for option in by_command.values()} for flag, by_command in shared.items()} == {
        flag: {SHARED[flag][0]} for flag in shared
    }


def test_a_key_has_one_flag_and_a_flag_one_key() -> None:
    flags, keys = defaultdict(set), defaultdict(set)
    for _, command in commands(typer.main.get_command(app)):
        for flag, key in getattr(command, "flags", {}).items():
            flags[key].add(flag)
            keys[flag].add(key)
    assert len(keys) > 25
    assert {key: names for key, names in flags.items() if len(names) > 1} == {"local.alignment": {"out", "alignment"}}
    assert {flag: names for flag, names in keys.items() if len(names) > 1} == {
        "out": {"local.out", "local.alignment"},
        "seed": {"training.seed", "data.seed"},
    }


def test_what_may_be_repeated_has_no_second_name_for_many(options: dict[str, dict[str, Any]]) -> None:
    """`--seeds` counts and `--labels` is a file: neither is a list of what its singular takes."""
    plurals = {flag for flag in options if f"{flag}s" in options}
    assert plurals <= {"--seed", "--label"}


def test_a_short_name_stands_for_one_option(options: dict[str, dict[str, Any]]) -> None:
    short = {
        flag: {max(option.opts, key=len) for option in by.values()} for flag, by in options.items() if len(flag) == 2
    }
    assert short == {"-h": {"--help"}, "-v": {"--verbose"}, "-y": {"--yes"}}
