"""A contender of a benchmark: a program that trains in turns, in a process and an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tpsl.bench.contenders.turns import PORT
from tpsl.vault.place import VARIABLE

PACKAGE = Path(__file__).parent.parent
TO_START_SECONDS = 300
TO_ANSWER_SECONDS = 300
TO_END_SECONDS = 3


class ContenderFailed(ValueError):
    """A contender that does not start or ends early; the sentence is the last that it said."""


@dataclass(frozen=True)
class Contender:
    """A program of `contenders`, and what it is run with."""

    name: str
    program: str
    training: dict[str, str] | None = None
    """What differs in the job's training from the usual, and the `precision`; None for contenders without a job."""
    python: Path | None = None
    """The interpreter of a virtual environment; None: that of this process."""
    how: str = ""
    """How it is run, in a sentence."""


@dataclass(frozen=True)
class Turn:
    """What a step took on average in one turn."""

    seconds: float
    cpu_seconds: float
    """Of all processes of the contender; 0 where the system does not tell."""


class RunningContender:
    """A contender that has started: it does the steps that it is told to do, and nothing in between."""

    def __init__(self, conversation: TextIO, port: str, output: Path) -> None:
        self._conversation, self._port, self._output = conversation, port, output

    def turn(self, steps: int) -> Turn:
        """Have it do at least so many steps."""
        before = _cpu_seconds(self._port)
        try:
            self._conversation.write(f"{steps}\n")
            self._conversation.flush()
            answer = self._conversation.readline()
        except OSError as error:
            raise ContenderFailed(f"{_last_words(self._output)} ({error})") from error
        if not answer:
            raise ContenderFailed(_last_words(self._output))
        seconds, done = answer.split()
        return Turn(float(seconds) / int(done), (_cpu_seconds(self._port) - before) / int(done))


@contextmanager
def started(contender: Contender, task: Path, folder: Path) -> Iterator[RunningContender]:
    """Start a contender on what `Shape.write` has put into `task`; `folder` holds all that it writes."""
    folder.mkdir()
    output = folder / "output.txt"
    with socket.create_server(("127.0.0.1", 0)) as door, output.open("wb") as written:
        port = str(door.getsockname()[1])
        process = subprocess.Popen(  # noqa: S603
            _command(contender, task, folder),
            cwd=folder,
            env=_environment(contender, folder) | {PORT: port},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
        try:
            with _accepted(door, process, output) as connection, connection.makefile("rw") as conversation:
                yield RunningContender(conversation, port, output)
        finally:
            _end(process, port)


def _command(contender: Contender, task: Path, folder: Path) -> list[str | Path]:
    package = PACKAGE if contender.python is None else _copied_programs(folder / "programs")
    program = package / "bench" / "contenders" / f"{contender.program}.py"
    settings = [] if contender.training is None else [json.dumps(contender.training)]
    return [contender.python or sys.executable, program, task, *settings]


def _environment(contender: Contender, folder: Path) -> dict[str, str]:
    """Return the environment of a contender: how many threads it computes with is for the shape alone to say.

    Its vault is another one than that of whoever measures.
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment[VARIABLE] = str(folder / "home")
    environment["OMP_WAIT_POLICY"] = "passive"
    if contender.python is not None:
        environment["PYTHONPATH"] = str(folder / "programs")
    return environment


def _copied_programs(folder: Path) -> Path:
    """Copy the programs, so that an interpreter without this package can import them; return their package."""
    copy = folder / PACKAGE.name
    for part in ("__init__.py", "bench/__init__.py"):
        (copy / part).parent.mkdir(parents=True)
        shutil.copyfile(PACKAGE / part, copy / part)
    shutil.copytree(PACKAGE / "bench" / "contenders", copy / "bench" / "contenders")
    return copy


def _accepted(door: socket.socket, process: subprocess.Popen[bytes], output: Path) -> socket.socket:
    """Return the connection that a contender makes once it has done its first step."""
    door.settimeout(1)
    for _ in range(TO_START_SECONDS):
        try:
            connection, _ = door.accept()
        except TimeoutError:
            if process.poll() is not None:
                raise ContenderFailed(_last_words(output)) from None
            continue
        connection.settimeout(TO_ANSWER_SECONDS)
        return connection
    raise ContenderFailed(f"it did not start within {TO_START_SECONDS} seconds")


def _last_words(output: Path) -> str:
    lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it ended without a word")


def _end(process: subprocess.Popen[bytes], port: str) -> None:
    """End a contender, which has seen that the conversation is over, and all that frameworks have started for it."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(TO_END_SECONDS)
    process.kill()
    process.wait()
    for found in _processes(port):
        with suppress(OSError):
            os.kill(int(found.name), signal.SIGKILL)


def _processes(port: str) -> Iterator[Path]:
    """Yield what Linux tells of each process that has inherited a contender's port."""
    mark = f"{PORT}={port}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                yield environment.parent


def _cpu_seconds(port: str) -> float:
    """Return the CPU time that the processes of a contender have taken so far."""
    ticks = 0
    for process in _processes(port):
        with suppress(OSError):
            fields = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
