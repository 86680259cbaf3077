"""Commands are run through `main()`, as the installed script does: in this process, or in one that was forked.

A new process costs seconds, a fork a moment. Where it matters that nothing was imported before, the script itself runs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.cli.main import main
from tpsl.data.config import SyntheticData
from tpsl_research.example_data import write_synthetic


@dataclass(frozen=True)
class Outcome:
    """What a command left behind in the shell."""

    status: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        """All of stdout as one JSON object, of a command that succeeded."""
        assert self.status == 0, self.stderr
        content = json.loads(self.stdout)
        assert isinstance(content, dict)
        return content

    def facts(self) -> dict[str, str]:
        """The facts and the next steps of a report, each by its name, of a command that succeeded."""
        assert self.status == 0, self.stderr
        found: dict[str, str] = {}
        column = 0
        for line in self.stdout.splitlines():
            if match := re.fullmatch(r"  (\S+(?: \S+)*)  +(\S.*)", line):
                found[match[1]], column = match[2], match.start(2)
            elif found and len(line) - len(line.lstrip()) == column:  # a fact of several lines
                found[[*found][-1]] += f" {line.strip()}"
        return found

    def error(self, status: int = 1) -> str:
        """The one sentence of a command that failed; with --json stdout has it too."""
        assert self.status == status, self.stdout + self.stderr
        assert "Traceback" not in self.stderr
        (sentence,) = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        assert self.stderr.rstrip().endswith(sentence)
        if self.stdout:
            assert f"error: {json.loads(self.stdout)['error']['message']}" == sentence
        return sentence

    def code(self, status: int = 1) -> str:
        """The code of the error of a command that was told to print JSON: its one object is the error."""
        assert self.status == status, self.stdout + self.stderr
        content = json.loads(self.stdout)
        assert list(content) == ["error"] and content["error"].keys() == {"code", "message"}
        code = content["error"]["code"]
        assert isinstance(code, str)
        return code


Tpsl = Callable[..., Outcome]


@pytest.fixture
def tpsl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tpsl:
    """Run the command `tpsl` with these arguments."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["tpsl", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Outcome(end.value.code or 0, captured.out, captured.err)

    return run


COMMAND = """
import sys
from tpsl.cli.main import main

sys.argv = ["tpsl", *arguments]
main()
"""
LIMIT = 120.0


class Script:
    """The installed script in a process; the same as `Forked` of what it does."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.stdout, self.stderr = (folder / f"{name}-{time.monotonic_ns()}.txt" for name in ("stdout", "stderr"))
        with self.stdout.open("w") as stdout, self.stderr.open("w") as stderr:
            command = [Path(sys.executable).with_name("tpsl"), *arguments]
            self._process = subprocess.Popen(command, cwd=folder, stdout=stdout, stderr=stderr)

    def status(self, within: float = 0.0) -> int | None:
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Program:
    """One command, running or ended, in a process; with `local.log=json` its log is JSON lines on stderr."""

    def __init__(self, process: Any) -> None:
        self.process = process

    def log(self) -> str:
        text: str = self.process.stderr.read_text()
        return text

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def wait_for(self, name: str, **facts: str) -> dict[str, Any]:
        """Wait for an event whose facts match these patterns."""
        until = time.monotonic() + LIMIT
        running = True
        while running and time.monotonic() < until:
            # The log is read after the look at the process, so that none of what it wrote before its end is missed.
            running = self.process.status(0.02) is None
            for event in self.events(name):
                if all(re.search(pattern, str(event.get(fact))) for fact, pattern in facts.items()):
                    return event
        raise AssertionError(f"no event {name} {facts} in:\n{self.log()}")

    def is_running(self) -> bool:
        return self.process.status() is None

    def signal(self, number: int) -> None:
        self.process.signal(number)

    def end(self) -> None:
        """Kill it if it still runs."""
        self.process.end()

    def outcome(self) -> Outcome:
        """Wait for its end."""
        status = self.process.status(LIMIT)
        assert status is not None, f"it did not end:\n{self.log()}"
        return Outcome(status, self.process.stdout.read_text(), self.log())

    def result(self) -> dict[str, Any]:
        """All of stdout as one JSON object, of a command that succeeds."""
        return self.outcome().json()

    def error(self) -> str:
        """The one sentence of a command that fails."""
        return self.outcome().error()


@pytest.fixture
def programs(fork: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Program]]:
    """Start the command `tpsl` in a folder and return it; all of them end with the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as forked ones have it
    started: list[Program] = []

    def start(folder: Path, *arguments: object, installed: bool = False) -> Program:
        words = [str(argument) for argument in arguments]
        process = Script(folder, words) if installed else fork(COMMAND, folder, arguments=words)
        started.append(Program(process))
        return started[-1]

    yield start
    for program in started:
        program.end()


SMALL_JOB: dict[str, Any] = {
    "data": {"source": "synthetic", "rows": 400, "numeric_fields": 3, "categorical_fields": 2, "largest_vocabulary": 8},
    "privacy": {"mechanism": "laplace", "epsilon": 2.0, "estimator": "linear"},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 50, "epochs": 1, "patience": 0},
}


@pytest.fixture
def small_job(tmp_path: Path) -> Path:
    """A job file that trains in a moment."""
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL_JOB))
    return path


@pytest.fixture
def table_job(tmp_path: Path) -> Path:
    """The same on files, whose labels are somebody's: releases of them count."""
    folder = tmp_path / "tables"
    data = write_synthetic(folder, SyntheticData.model_validate(SMALL_JOB["data"])).config.model_dump(mode="json")
    (folder / "job.yaml").write_text(yaml.safe_dump({**SMALL_JOB, "data": data}))
    return folder / "job.yaml"
