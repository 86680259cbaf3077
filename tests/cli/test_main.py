"""The command as the shell sees it: help, version, exit status, and one sentence for whatever is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from tpsl import __version__
from tpsl.cli.main import PANELS, app


def commands_of(group: Any, name: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """All commands and groups below a group, and itself."""
    below = [(known, group.get_command(None, known)) for known in group.list_commands(None)]
    deeper = [
        commands_of(command, (*name, known)) if hasattr(command, "list_commands") else [(*name, known)]
        for known, command in below
    ]
    return [name, *(command for commands in deeper for command in commands)]


GROUPS = [(), ("vault",), ("label",), ("feature",), ("research",)]
COMMANDS = commands_of(typer.main.get_command(app))


def installed(*arguments: object) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("tpsl")
    return subprocess.run([script, *map(str, arguments)], capture_output=True, text=True)


def test_all_commands_are_looked_at() -> None:
    assert len(COMMANDS) > 25
    assert set(GROUPS) < set(COMMANDS)
    assert ("vault", "release") in COMMANDS


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_in_80_columns(
    tpsl: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = tpsl(*command, "--help")
    assert outcome.status == 0
    assert " ".join(["Usage: tpsl", *command]) in outcome.stdout
    assert ("--json" in outcome.stdout) == (command not in GROUPS)
    lines = outcome.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not re.search(r"<[a-zA-Z]", outcome.stdout), "words, not types"
    borders = [line for line in lines if line.startswith(("│", "╭", "╰"))]
    assert {len(line) for line in borders} == {80}
    # Words are whole, and stand beside what they explain: no column is narrower than a word, none is left alone.
    flags = [line.split()[1] for line in borders if line.startswith("│ --")]
    assert all(re.fullmatch(r"--[a-z-]+(,--[a-z-]+)*", flag) for flag in flags)
    assert all(len(line[2:-2].split()) > 2 for line in borders if line.startswith("│ --"))


def test_short_help_is_help(tpsl: Any) -> None:
    assert tpsl("train", "-h").stdout == tpsl("train", "--help").stdout


def test_daily_commands_come_first_and_other_packages_apart(tpsl: Any) -> None:
    shown = tpsl("--help").stdout
    places = [shown.index(f"╭─ {panel} ") for panel in (*PANELS, "From installed packages")]
    assert places == sorted(places)
    assert shown.index("│ research ") > places[-1] > shown.index("│ vault ")


def test_every_command_has_its_place_in_the_help() -> None:
    registered = set(getattr(typer.main.get_command(app), "commands"))  # noqa: B009
    assert registered <= {name for names in PANELS.values() for name in names}


def test_tpsl_alone_says_what_to_do_first(tpsl: Any) -> None:
    outcome = tpsl()
    assert outcome.status == 0
    assert outcome.stderr == ""
    lines = outcome.stdout.splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[1:3]] == ["tpsl demo", "tpsl init features.csv labels.csv"]
    assert "label serve" in lines[3]
    assert all(name in outcome.stdout for (name, *_) in COMMANDS[1:])
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("tr", {"train"}),
        ("vault rel", {"release"}),
        ("resea", {"research"}),
        ("train --scr", {"--scratch"}),
        ("train --set privacy.mechanism=lap", {"privacy.mechanism=laplace"}),
        ("train --set training.ep", {"training.epochs="}),
        ("train --set privacy.estimator=p", {"privacy.estimator=posterior"}),
        ("label serve job.yaml --set local.metr", {"local.metrics="}),
    ],
)
def test_the_shell_completes(words: str, completed: set[str], tpsl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As bash asks: the words so far in the environment, the answers on standard output."""
    monkeypatch.setenv("_TPSL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"tpsl {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    outcome = tpsl()
    assert outcome.status == 0, outcome.stderr
    assert set(outcome.stdout.split()) == completed


MODULE = """
from tpsl.mechanisms import MECHANISMS

MECHANISMS.register("{name}", lambda epsilon, classes: [[3 << 62, 1 << 62], [1 << 62, 3 << 62]])
"""


def test_modules_of_the_user_are_imported_before_a_command(
    tpsl: Any, small_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("coin_a", "coin_b"):
        (tmp_path / f"house_{name}.py").write_text(MODULE.format(name=name))
    named = ("train", small_job, "--set=privacy.mechanism=coin_a", "--epsilon", 2)
    assert "unknown mechanism 'coin_a'" in tpsl(*named).error()
    assert tpsl("--use", "house_coin_a", *named, "--out", "a", "--json").json()["mechanism"] == "coin_a"
    monkeypatch.setenv("TPSL_USE", "house_coin_b,house_coin_a")
    assert "coin_b" in tpsl("help", "keys", "privacy.mechanism").stdout
    assert "the module 'nowhere' cannot be imported" in tpsl("--use", "nowhere", "help", "keys").error()


def test_the_installed_script_shows_help_and_version() -> None:
    shown = installed("--help")
    assert shown.returncode == 0
    assert all(command in shown.stdout for command in ("demo", "train", "check", "vault"))
    assert installed("--version").stdout == f"{__version__}\n"


def test_the_installed_script_fails_with_one_sentence_on_stderr(tmp_path: Path) -> None:
    failed = installed("vault", "ledger", tmp_path / "nowhere")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr == f"error: there is no vault at {tmp_path / 'nowhere'}: no such folder\n"


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; import tpsl.cli.main, tpsl.training.job, tpsl.training.local; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (("nonsense",), "nonsense"),
        (("train", "--nonsense"), "--nonsense"),
        (("train", "--epsilon", "much"), "--epsilon"),
        (("train", "--set=privacy.draws"), "--set takes KEY=VALUE"),
        (("vault", "add", "--new"), "LABEL"),
        (("research", "data", "synthetic", "--rows", "few"), "--rows"),
        (("research", "paper", "--preset", "odd"), "'odd' is not one of 'paper', 'small', 'adam'"),
        (("research", "data", "weather"), "the data sets are flights, synthetic, criteo, avazu"),
        (("train", "--learner", "logistic"), "--learner is for --labels"),
        (("help", "weather"), "'weather'"),
    ],
)
def test_a_wrong_option_is_one_sentence_that_names_it(tpsl: Any, arguments: tuple[str, ...], culprit: str) -> None:
    assert culprit in tpsl(*arguments).error(status=2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train --set privacy.draws=3", "options: privacy.draws: Input should be 1 or 2, got 3"),
        ("research data synthetic --rows 3", "options: data.rows: Input should be greater than or equal to 10, got 3"),
        ("research data flights --set data.layout=odd", "options: data.layout: Input should be 'all' or 'natural'"),
        ("train --set training.epoch=3", "there is no key 'training.epoch'; near are training.epochs"),
        ("train --set local.wait=[1", "--set local.wait: the value is not YAML"),
        ("label serve job.yaml --set local.wait=-1", "job.yaml: cannot be read"),
        (
            "vault release v --set training.epochs=4",
            "training.epochs: this command takes only keys of privacy and local",
        ),
    ],
)
def test_a_key_that_cannot_be_set_is_one_sentence(tpsl: Any, arguments: str, sentence: str) -> None:
    assert sentence in tpsl(*arguments.split()).error()


@pytest.mark.parametrize("group", [("vault",), ("label",)], ids=["vault", "label"])
def test_a_group_without_a_command_shows_its_help(tpsl: Any, group: tuple[str, ...]) -> None:
    outcome = tpsl(*group)
    assert outcome.status == 2
    assert " ".join(["Usage: tpsl", *group]) in outcome.stdout
    assert outcome.stderr == ""
