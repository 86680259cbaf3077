"""The Dockerfile, read as Docker reads it: no secrets, nobody is root, and what the images start is there."""

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
DOCKERFILE = ROOT / "deploy" / "docker" / "tpsl.Dockerfile"
ROLES = ("label", "feature")


def instructions(file: Path) -> list[tuple[str, str]]:
    """Instructions and what follows them; lines that are continued are one."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in whole if line.strip())]


def stage(name: str) -> list[tuple[str, str]]:
    """The instructions of a stage, after its FROM."""
    found = instructions(DOCKERFILE)
    starts = [position for position, (word, _) in enumerate(found) if word == "FROM"] + [len(found)]
    (start,) = [position for position in starts[:-1] if found[position][1].endswith(f" AS {name}")]
    return found[start + 1 : next(position for position in starts if position > start)]


def test_nothing_is_fetched_unseen_and_nothing_secret_stays() -> None:
    words = [word for word, _ in instructions(DOCKERFILE)]
    assert "ADD" not in words
    assert words[0] == "ARG"
    text = DOCKERFILE.read_text()
    assert not re.search(r"https?://(?!127\.0\.0\.1)", text), "where packages come from is the builder's own matter"
    assert not re.search(r"password|token|\bkey\.pem", text.replace("nor are its passwords", ""), re.IGNORECASE)
    for word, rest in instructions(DOCKERFILE):
        if word == "RUN" and "pip install" in rest:
            assert "-c constraints.txt" in rest
            assert "--mount=type=secret,id=pip.conf" in rest


def test_the_user_is_that_of_the_pods_and_not_root() -> None:
    common = stage("common")
    assert [rest for word, rest in common if word == "USER"] == ["10001:10001"]
    assert common[-1][0] == "HEALTHCHECK", "nothing is installed after the user is set"
    for role in ROLES:
        assert not {"USER", "RUN", "COPY"} & {word for word, _ in stage(role)}


def test_the_image_is_that_of_the_role_which_an_argument_names() -> None:
    found = instructions(DOCKERFILE)
    before = found[: next(position for position, (word, _) in enumerate(found) if word == "FROM")]
    assert ("ARG", "ROLE=label") in before
    assert found[-1] == ("FROM", "${ROLE}")
    assert {rest.partition(" ")[0] for word, rest in found if word == "FROM" and rest.endswith(ROLES)} == {"common"}


def test_pytorch_is_the_one_of_the_constraints() -> None:
    (arguments,) = [rest for word, rest in instructions(DOCKERFILE) if word == "ARG" and rest.startswith("TORCH=")]
    assert f"torch=={arguments.removeprefix('TORCH=').removesuffix('+cpu')}" in (ROOT / "constraints.txt").read_text()


def test_the_builder_gets_what_is_copied_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        name
        for word, rest in instructions(DOCKERFILE)
        if word == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    }
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("role", ROLES)
def test_what_an_image_starts_is_installed(role: str, require_command: Callable[[list[str]], None]) -> None:
    started = dict(stage(role))
    program, *words = json.loads(started["ENTRYPOINT"])
    assert shutil.which(program, path=str(Path(sys.executable).parent))
    assert words == [role]
    require_command([*words, *json.loads(started["CMD"])])


def test_an_option_that_does_not_exist_would_be_found(require_command: Callable[[list[str]], None]) -> None:
    with pytest.raises(AssertionError):
        require_command(["label", "serve", "job.yaml", "--nowhere"])


def test_the_health_check_asks_what_it_is_told_to() -> None:
    (check,) = [rest for word, rest in stage("common") if word == "HEALTHCHECK"]
    command = json.loads(check[check.index("[") :])
    command[0] = sys.executable
    asked = {**os.environ, "TPSL_HEALTH": "http://127.0.0.1:9/metrics"}
    assert subprocess.run(command, env=asked, capture_output=True).returncode == 1, "nobody is there"
    asked["TPSL_HEALTH"] = (ROOT / "LICENSE").as_uri()
    assert subprocess.run(command, env=asked, capture_output=True).returncode == 0
