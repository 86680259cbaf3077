"""The Dockerfiles, read as Docker reads them: no secrets, nobody is root, and what they start is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMON, *ROLES = (ROOT / "deploy" / "docker" / f"{name}.Dockerfile" for name in ("tpsl", "label", "feature"))


def instructions(file: Path) -> list[tuple[str, str]]:
    """Instructions and what follows them; lines that are continued are one."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in whole if line.strip())]


def last_stage(file: Path) -> list[tuple[str, str]]:
    found = instructions(file)
    (*_, start) = [position for position, (word, _) in enumerate(found) if word == "FROM"]
    return found[start:]


@pytest.mark.parametrize("file", [COMMON, *ROLES], ids=lambda file: file.stem)
def test_nothing_is_fetched_unseen_and_nothing_secret_stays(file: Path) -> None:
    words = [word for word, _ in instructions(file)]
    assert "ADD" not in words
    assert words[0] == "ARG" or words[0] == "FROM"
    text = file.read_text()
    assert not re.search(r"https?://(?!127\.0\.0\.1)", text), "where packages come from is the builder's own matter"
    assert not re.search(r"password|token|\bkey\.pem", text.replace("nor are its passwords", ""), re.IGNORECASE)
    for word, rest in instructions(file):
        if word == "RUN" and "pip install" in rest:
            assert "-c constraints.txt" in rest
            assert "--mount=type=secret,id=pip.conf" in rest


def test_the_user_is_that_of_the_pods_and_not_root() -> None:
    stage = last_stage(COMMON)
    (user,) = [rest for word, rest in stage if word == "USER"]
    assert user == "10001:10001"
    assert stage[-1][0] == "HEALTHCHECK", "nothing is installed after the user is set"
    for file in ROLES:
        assert not {"USER", "RUN", "COPY"} & {word for word, _ in instructions(file)}


def test_pytorch_is_the_one_of_the_constraints() -> None:
    (arguments,) = [rest for word, rest in instructions(COMMON) if word == "ARG" and rest.startswith("TORCH=")]
    assert f"torch=={arguments.removeprefix('TORCH=').removesuffix('+cpu')}" in (ROOT / "constraints.txt").read_text()


def test_the_builder_gets_what_is_copied_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        name
        for word, rest in instructions(COMMON)
        if word == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    }
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("file", ROLES, ids=lambda file: file.stem)
def test_what_an_image_starts_is_installed(file: Path, require_command: Callable[[list[str]], None]) -> None:
    stage = dict(last_stage(file))
    program, *words = json.loads(stage["ENTRYPOINT"])
    assert shutil.which(program, path=str(Path(sys.executable).parent))
    assert words == [file.stem]
    require_command([*words, *json.loads(stage["CMD"])])


def test_an_option_that_does_not_exist_would_be_found(require_command: Callable[[list[str]], None]) -> None:
    with pytest.raises(AssertionError):
        require_command(["label", "serve", "job.yaml", "--nowhere"])


def test_the_health_check_asks_what_it_is_told_to() -> None:
    (check,) = [rest for word, rest in last_stage(COMMON) if word == "HEALTHCHECK"]
    command = json.loads(check[check.index("[") :])
    command[0] = sys.executable
    asked = {**os.environ, "TPSL_HEALTH": "http://127.0.0.1:9/metrics"}
    assert subprocess.run(command, env=asked, capture_output=True).returncode == 1, "nobody is there"
    asked["TPSL_HEALTH"] = (ROOT / "LICENSE").as_uri()
    assert subprocess.run(command, env=asked, capture_output=True).returncode == 0
