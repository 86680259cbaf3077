"""The command as the shell sees it: help, options, exit status, one sentence or JSON object for whatever is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tpsl import __version__
from tpsl.cli.main import PANELS, app
from tpsl.error_codes import code_of
from tpsl.run.job import JobError
from tpsl.vault import VaultError

MOST_COMMANDS, MOST_OPTIONS = 30, 200
"""Of all commands together, `tpsl research` included, each option counted in every command that has it."""


def walked(command: Any, context: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, list[Any]]]:
    """A command and all below it: the words that call it, itself, its parameters."""
    yield name, command, command.get_params(context)
    for known in command.list_commands(context) if hasattr(command, "list_commands") else ():
        below = command.get_command(context, known)
        yield from walked(below, below.context_class(below, info_name=known, parent=context), (*name, known))


ROOT: Any = typer.main.get_command(app)
WALKED = list(walked(ROOT, ROOT.make_context("tpsl", ["help"])))
COMMANDS = [name for name, *_ in WALKED]
LEAVES = {name: parameters for name, command, parameters in WALKED if not hasattr(command, "list_commands")}
GROUPS = [(), ("vault",), ("label",), ("feature",), ("research",)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
    code = "import sys; import tpsl.cli.main, tpsl.run.job, tpsl.run.local; assert 'torch' not in sys.modules"
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
        (("train", "--learner", "lightgbm"), "--learner is for --labels"),
        (("train", "job.yaml", "--labels", "given", "--learner", "magic"), "'magic' is not one of 'network'"),
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


@pytest.fixture(scope="module")
def options() -> dict[str, dict[str, Any]]:
    """All options by name, each by the command that has it."""
    found: dict[str, dict[Any, Any]] = defaultdict(dict)
    for command, known in LEAVES.items():
        for parameter in known:
            if parameter.param_type_name == "option":
                for flag in parameter.opts:
                    found[flag][command] = parameter
    return found


def test_commands_and_options_are_few() -> None:
    assert ("research", "paper") in LEAVES
    assert len(LEAVES) <= MOST_COMMANDS
    assert sum(each.param_type_name == "option" for known in LEAVES.values() for each in known) <= MOST_OPTIONS


def kind(option: Any) -> str:
    element = re.sub(r"^list\[(.*)\]$", r"\1", str(option.bare_type()))
    return "flag" if option.is_flag else "number" if element in ("int", "float") else "text"


def test_an_option_takes_the_same_in_every_command(options: dict[str, dict[str, Any]]) -> None:
    shared = {flag: {kind(option) for option in by_command.values()} for flag, by_command in options.items()}
    assert {flag: kinds for flag, kinds in shared.items() if len(kinds) > 1} == {}


def test_what_an_option_takes_is_a_word() -> None:
    for command, known in LEAVES.items():
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


@pytest.mark.parametrize("command", LEAVES, ids=" ".join)
def test_a_wrong_option_is_one_object(tpsl: Any, command: tuple[str, ...]) -> None:
    outcome = tpsl(*command, "--no-such-option", "--json")
    assert outcome.code(2) == "usage"
    assert "--no-such-option" in outcome.error(2)


FAILURES = {
    "init a.csv b.csv": "data",
    "check job.yaml": "job",
    "train job.yaml": "job",
    "train --set training.epoch=3": "unknown-key",
    "train --set privacy.estimator=odd": "job",
    "train --set local.wait=-1": "local",
    "train --set data.source=synthetic --set privacy.epsilon=15": "vault",
    "label serve job.yaml": "job",
    "label evaluate run": "run",
    "feature join job.yaml --local local.yaml": "job",
    "align job.yaml": "job",
    "tune job.yaml": "job",
    "predict run --records shop=new.csv --out scores.csv": "run",
    "predict run --records new.csv --connect 127.0.0.1:1": "run",
    "score run --connect 127.0.0.1:1": "run",
    "export run --party label --out out": "run",
    "report run": "run",
    "ui absent": "run",
    "vault add late labels.csv --new": "vault",
    "vault add late labels.csv": "vault",
    "vault release late --epsilon 1": "vault",
    "vault ledger late": "vault",
    "vault verify": "vault",
    "vault backup --out copy": "vault",
    "vault move elsewhere": "vault",
    "vault statement late --certs certs": "vault",
    "vault statement --check statement.json": "file-not-found",
    "attack run": "run",
    "audit run": "job",
    "certs": "invalid-value",
    "plan job.yaml --rows 100": "job",
    "help keys nothing": "invalid-value",
    "research data flights --rows 3": "job",
    "research paper --data criteo": "job",
    "research frontier job.yaml": "job",
    "research figures run": "run",
}
"""What cannot be done in an empty folder, and why not."""


@pytest.mark.parametrize(("command", "code"), FAILURES.items(), ids=FAILURES)
def test_what_cannot_be_done_is_one_object_with_a_code(tpsl: Any, command: str, code: str) -> None:
    outcome = tpsl(*command.split(), "--json")
    assert outcome.code() == code
    assert outcome.error(), "and one sentence for people"


def test_without_the_option_there_is_the_sentence_alone(tpsl: Any) -> None:
    assert tpsl("train", "job.yaml").stdout == ""


def test_a_fault_of_the_program_is_one_object_too(
    tpsl: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("this cannot be")

    monkeypatch.setattr("tpsl.cli.main._list_keys", broken)
    with pytest.raises(RuntimeError, match="this cannot be"):
        tpsl("help", "keys", "--json")
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "internal"


def test_a_command_that_printed_its_result_adds_nothing(tpsl: Any, tmp_path: Path) -> None:
    """Exit status 1 says that the vault is not sound; the result says why."""
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"r{row},{row % 2}\n" for row in range(40)))
    tpsl("vault", "add", "late", "labels.csv", "--new", "--json").json()
    outcome = tpsl("vault", "verify", "--hash", "0" * 64, "--json")
    assert outcome.status == 1
    assert json.loads(outcome.stdout)["sound"] is False


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (JobError, "job"),
        (VaultError, "vault"),
        (ValueError, "invalid-value"),
        (FileNotFoundError, "file-not-found"),
        (OSError, "operating-system"),
        (KeyboardInterrupt, "interrupted"),
    ],
)
def test_a_code_is_the_name_of_the_class(kind: type[BaseException], code: str) -> None:
    assert code_of(kind) == code_of(kind("why")) == code


def test_a_class_can_say_its_code() -> None:
    class OddError(ValueError):
        code = "rather-odd"

    assert code_of(OddError("why")) == "rather-odd"
    assert code_of(type("StillOddError", (OddError,), {})) == "rather-odd"
