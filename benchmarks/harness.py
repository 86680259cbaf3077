"""Contenders in processes that step when it is their turn, and their speed against a baseline that steps beside them.

A contender waits before a step until it is its turn, so several can share a machine without disturbing one another.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self, TextIO

from contenders.turns import PORT
from tpsl.net.certificates import create_authority, issue
from tpsl.run.job import Job
from tpsl.vault.place import VARIABLE as HOME

HERE = Path(__file__).parent
PROXY, THIS_PACKAGE = HERE / "tcp_proxy.py", HERE / "contenders" / "this_package.py"
TO_END_SECONDS = 60


class Child:
    """A process of a program; it ends with its stdin, at the latest with the block that it is used in."""

    def __init__(
        self,
        *command: str | Path,
        python: Path | None = None,
        folder: Path | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        # How many threads a contender computes with is for its command alone to say.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH") if python is None else None]))
        self._command = " ".join(map(str, command))
        self.process = subprocess.Popen(
            [python or sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=folder,
            env={**environment, "PYTHONPATH": path, **variables},
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")

    def line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a process ended early: {self._command}")
        return line.strip()

    def cpu_seconds(self) -> float:
        """The CPU time of all its threads so far."""
        return _cpu_seconds(Path(f"/proc/{self.process.pid}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(TO_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _cpu_seconds(process: Path) -> float:
    used = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


class Turn(NamedTuple):
    """A step of a contender, in the mean over its turn of one round."""

    seconds: float
    cpu_seconds: float
    waited: float
    """The share of the turn in which it waited for a peer."""


class Contender(Child):
    """The process of a contender that takes turns, with the processes that its library starts for it.

    `python` is the interpreter of another environment; `folder` is where the contender writes what it must; `in_flight`
    is how many of its steps are under way at the same time.
    """

    def __init__(
        self, *command: str | Path, python: Path | None = None, folder: Path | None = None, in_flight: int = 1
    ) -> None:
        self._in_flight = in_flight
        self._door = socket.create_server(("127.0.0.1", 0))
        self._door.settimeout(1)
        port = str(self._door.getsockname()[1])
        self._mark = f"{PORT}={port}"
        super().__init__(*command, python=python, folder=folder, variables={PORT: port})

    @cached_property
    def _talk(self) -> TextIO:
        """The connection that the contender makes before its first step."""
        while self.process.poll() is None:
            with suppress(TimeoutError):
                connection, _ = self._door.accept()
                connection.setblocking(True)
                return connection.makefile("rw", encoding="utf-8")
        sys.exit(f"a process ended early: {self._command}")

    def turn(self, steps: int) -> Turn:
        """Let it do so many steps.

        If several steps are under way at the same time, as many of them as that go before those that count, without a
        pause between them: then as many are under way when the time begins as when it ends.
        """
        counts = self._counts(steps)
        before = self.cpu_seconds()
        self._talk.write("".join(f"{count}\n" for count in counts))
        self._talk.flush()
        for _ in counts:
            answer = self._talk.readline()
            if not answer:
                sys.exit(f"a process ended early: {self._command}")
            seconds, done, waited = map(float, answer.split())
        cpu = max(self.cpu_seconds() - before, 1 / os.sysconf("SC_CLK_TCK"))  # the least that Linux counts
        return Turn(seconds / done, cpu / sum(counts), waited / seconds)

    def _counts(self, steps: int) -> list[int]:
        """Return how many steps a turn has: those that do not count, if any, and those that do."""
        return [steps] if self._in_flight == 1 else [self._in_flight, steps]

    def cpu_seconds(self) -> float:
        return sum(map(_cpu_seconds, self._processes()))

    def _processes(self) -> Iterator[Path]:
        """Yield what Linux tells of each process that has inherited the contender's port."""
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if self._mark.encode() in environment.read_bytes().split(b"\0"):
                    yield environment.parent

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._door.close()
        if "_talk" in self.__dict__:
            self._talk.close()
        super().__exit__(kind, error, traceback)
        for process in self._processes():
            with suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)


class OneProcess(Contender):
    """All parties of a job in one process; `folder` holds everything that it writes."""

    def __init__(self, job: Job, folder: Path, *, threads: int, precision: str = "float32") -> None:
        folder.mkdir()
        (folder / "job.yaml").write_text(job.to_yaml(), encoding="utf-8")
        how = ("--threads", str(threads), "--precision", precision)
        super().__init__(THIS_PACKAGE, "both", folder / "job.yaml", *how)


class TwoParties(Contender):
    """Both parties of a job with one feature party; the feature party's process takes turns, the label party follows.

    `folder` holds everything they write. Through a proxy the bytes between them are counted, and can be delayed.
    """

    def __init__(self, job: Job, folder: Path, *, threads: tuple[int, int], proxy: bool, device: str = "cpu") -> None:
        folder.mkdir()
        job_file = folder / "job.yaml"
        job_file.write_text(job.to_yaml(), encoding="utf-8")
        (party,) = job.data.feature_parties
        create_authority(folder / "authority")
        issue(folder / "authority", folder / "certs-label", "label")
        issue(folder / "authority", folder / f"certs-{party}", party)
        feature, label = ((job_file, "--threads", str(count), "--device", device) for count in threads)
        # HOME: not the vault of whoever measures.
        self.label = Child(THIS_PACKAGE, "label", *label, variables={HOME: str(folder / "home")})
        address = self.label.line()
        self.proxy = Child(PROXY, "--to", address) if proxy else None
        if self.proxy:
            address = f"127.0.0.1:{self.proxy.line()}"
        command = (THIS_PACKAGE, "feature", *feature, "--connect", address)
        super().__init__(*command, in_flight=1 + job.training.staleness)

    def bytes_of_a_step(self, steps: int) -> float:
        """Let it do so many steps; return the bytes that went through the proxy, both ways, in one."""
        self.turn(1)
        before = self._bytes_carried()
        self.turn(steps)
        return (self._bytes_carried() - before) / sum(self._counts(steps))

    def delay(self, milliseconds: float) -> None:
        """Have everything delivered so much later, each way."""
        assert self.proxy
        self.turn(1)
        self.proxy.tell(f"delay {milliseconds}")

    def _bytes_carried(self) -> int:
        assert self.proxy
        self.proxy.tell("count")
        counted = json.loads(self.proxy.line())
        return int(counted["forward"]) + int(counted["back"])

    def cpu_seconds(self) -> float:
        return super().cpu_seconds() + self.label.cpu_seconds()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        # The label party would wait for the feature party to come back.
        self.label.process.kill()
        for child in (self.label, self.proxy):
            if child:
                child.__exit__(kind, error, traceback)


def in_turns(contenders: Mapping[str, Contender], rounds: int, steps: int, warm_up: int) -> dict[str, list[Turn]]:
    """Return every contender's turns, one for each round."""
    for contender in contenders.values():
        contender.turn(warm_up)
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    for number in range(rounds):
        print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr)
        # Every second round backwards, so that none is always measured after the same one.
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            turns[name].append(contenders[name].turn(steps))
    print(file=sys.stderr)
    return turns


def against(baseline: str, turns: Mapping[str, list[Turn]], batch: int) -> dict[str, dict[str, Any]]:
    """Return the speed of each contender, and its ratio to the baseline: the median over rounds."""
    result: dict[str, dict[str, Any]] = {}
    for name, own in turns.items():
        pairs = list(zip(turns[baseline], own, strict=True))
        ratios = [other.seconds / each.seconds for other, each in pairs]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        result[name] = {
            "milliseconds": round(1000 * median(each.seconds for each in own), 2),
            "samples/s": round(batch / median(each.seconds for each in own)),
            f"of {baseline}": round(median(ratios), 3),
            "quartiles": [round(low, 3), round(high, 3)],
            "by CPU time": round(median(other.cpu_seconds / each.cpu_seconds for other, each in pairs), 3),
            "waited": round(median(each.waited for each in own), 2),
        }
    return result
