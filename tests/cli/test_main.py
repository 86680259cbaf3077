"""The command as the shell sees it: help, version, exit status, and one sentence for whatever is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tpsl import __version__

COMMANDS = [
    (),
    ("demo",),
    ("train",),
    ("data",),
    ("data", "flights"),
    ("data", "synthetic"),
    ("vault",),
    ("vault", "create"),
    ("vault", "add"),
    ("vault", "release"),
    ("vault", "ledger"),
    ("vault", "verify"),
]


def installed(*arguments: object) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("tpsl")
    return subprocess.run([script, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_explains_itself(tpsl: Any, command: tuple[str, ...], flag: str) -> None:
    outcome = tpsl(*command, flag)
    assert outcome.status == 0
    assert " ".join(["Usage: tpsl", *command]) in outcome.stdout
    if command and command not in [("data",), ("vault",)]:
        assert "--json" in outcome.stdout


def test_the_installed_script_shows_help_and_version() -> None:
    shown = installed("--help")
    assert shown.returncode == 0
    assert all(command in shown.stdout for command in ("demo", "train", "data", "vault"))
    assert installed("--version").stdout == f"{__version__}\n"


def test_the_installed_script_fails_with_one_sentence_on_stderr(tmp_path: Path) -> None:
    failed = installed("vault", "ledger", tmp_path / "nowhere")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr == f"error: there is no vault at {tmp_path / 'nowhere'}: no such folder\n"


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; import tpsl.cli.main; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (("nonsense",), "nonsense"),
        (("train", "--nonsense"), "--nonsense"),
        (("train", "--mechanism", "magic"), "'magic' is not one of 'auto', 'none', 'laplace', 'discrete'"),
        (("train", "--epsilon", "much"), "--epsilon"),
        (("train", "--set", "privacy.draws"), "--set takes KEY=VALUE"),
        (("vault", "create"), "vault"),
        (("data", "synthetic", "--rows", "few"), "--rows"),
        (("data", "flights", "--layout", "odd"), "'odd' is not one of 'all', 'natural'"),
    ],
)
def test_a_wrong_option_is_one_sentence_that_names_it(tpsl: Any, arguments: tuple[str, ...], culprit: str) -> None:
    assert culprit in tpsl(*arguments).error(status=2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train --set privacy.draws=3", "options: privacy.draws: Input should be 1 or 2, got 3"),
        ("data synthetic --rows 3", "options: data.rows: Input should be greater than or equal to 10, got 3"),
        ("data synthetic --classes 1", "options: data.classes: Input should be greater than or equal to 2, got 1"),
        ("data synthetic --set data.source=flights", "data.source: this command writes synthetic, not flights"),
        ("train --set training.epoch=3", "there is no key 'training.epoch'; near are training.epochs"),
        ("train --epochs 3 --set training.epochs=4", "training.epochs is given twice"),
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


@pytest.mark.parametrize("group", [(), ("vault",), ("data",)], ids=["tpsl", "vault", "data"])
def test_a_group_without_a_command_shows_its_help(tpsl: Any, group: tuple[str, ...]) -> None:
    outcome = tpsl(*group)
    assert outcome.status == 2
    assert " ".join(["Usage: tpsl", *group]) in outcome.stdout
    assert outcome.stderr == ""
