"""With `--json` a command prints exactly one JSON object, also when it fails; the object has the code of the error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from tpsl.cli.main import app
from tpsl.error_codes import code_of
from tpsl.training.job import JobError
from tpsl.vault import VaultError


def leaves(group: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of every command that does something."""
    if not hasattr(group, "list_commands"):
        return [path]
    return [leaf for name in group.list_commands(None) for leaf in leaves(group.get_command(None, name), (*path, name))]


COMMANDS = leaves(typer.main.get_command(app))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
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
    "train job.yaml --labels given --learner magic": "job",
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
    "plan job.yaml": "job",
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


def test_an_installed_script_prints_it_as_well(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("tpsl")
    done = subprocess.run([script, "train", "job.yaml", "--json"], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "job"


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
