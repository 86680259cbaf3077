"""Contenders of benchmarks, in processes that step when they are told to: above all the two parties of a job.

Each party is this program started in its role, and that is `tpsl label serve` or `tpsl feature join` without the live
line, on loopback with mutual TLS, or `tpsl train` for both. The feature party waits before a step until it is its turn,
so several contenders can share a machine without disturbing one another.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, TextIO

import torch

from contenders.turns import PORT, Turns
from tpsl.data.dataset import feature_party_names
from tpsl.models.halves import compute_in
from tpsl.net.certificates import create_authority, issue
from tpsl.training.job import Job, load_job
from tpsl.training.local import Local
from tpsl.training.observer import Fact, Observer, Watching
from tpsl.training.one_process import train
from tpsl.training.over_network import join, serve
from tpsl.vault.place import VARIABLE as HOME

PROXY = Path(__file__).parent.parent / "tests" / "tcp_proxy.py"
TO_END_SECONDS = 60


class Child:
    """A process of this program; it ends with its stdin, at the latest with the block that it is used in."""

    def __init__(
        self,
        *command: str | Path,
        variables: Mapping[str, str] = MappingProxyType({}),
        python: Path | None = None,
        folder: Path | None = None,
    ) -> None:
        # How many threads a contender computes with is for its command alone to say.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self._command = " ".join(map(str, command))
        self.process = subprocess.Popen(
            [python or sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=folder,
            env={**environment, **variables},
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
        return _seconds(Path(f"/proc/{self.process.pid}/stat"))[1]

    def seconds_by_thread(self) -> dict[str, float]:
        """The CPU time of each thread so far, by its number and name; the first one is the role's."""
        stats = sorted(Path(f"/proc/{self.process.pid}/task").glob("*/stat"), key=lambda path: int(path.parent.name))
        found = {}
        for number, stat in enumerate(stats):
            name, seconds = _seconds(stat)
            found[f"{number} {name if number else 'the role'}"] = seconds
        return found

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


def _seconds(stat: Path) -> tuple[str, float]:
    """The name of a process or thread, and its CPU time."""
    name, _, fields = stat.read_text(encoding="utf-8").partition("(")[2].rpartition(")")
    used = fields.split()[11:13]
    return name, sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


class Contender(Child):
    """The process of a contender that takes turns, with the processes that its library starts for it.

    `python` is the interpreter of another environment; `folder` is where the contender writes what it must.
    """

    waited = 0.0
    """The share of its last turn in which it waited for a peer."""

    def __init__(self, *command: str | Path, python: Path | None = None, folder: Path | None = None) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self._door.settimeout(1)
        self._mark = f"{PORT}={self._door.getsockname()[1]}"
        variables = dict([self._mark.split("=")])
        if command[0] != __file__:
            variables["PYTHONPATH"] = str(Path(__file__).parent)  # of the programs in `contenders`
        super().__init__(*command, python=python, folder=folder, variables=variables)

    @cached_property
    def _talk(self) -> TextIO:
        """The connection that the contender makes before its first step."""
        while self.process.poll() is None:
            with suppress(TimeoutError):
                connection, _ = self._door.accept()
                connection.setblocking(True)
                return connection.makefile("rw", encoding="utf-8")
        sys.exit(f"a process ended early: {self._command}")

    def steps(self, count: int) -> float:
        """Let it do so many steps; return the seconds of one."""
        return self._turns(count)

    def steps_in_flight(self, before: int, count: int) -> float:
        """Let it do so many steps and, without a pause, those that count; return the seconds of one of the latter."""
        return self._turns(before, count)

    def cpu_seconds(self) -> float:
        return sum(_seconds(process / "stat")[1] for process in self._processes())

    def _turns(self, *counts: int) -> float:
        """Let it take turns without a pause; return the seconds of a step of the last one."""
        self._talk.write("".join(f"{count}\n" for count in counts))
        self._talk.flush()
        for _ in counts:
            answer = self._talk.readline()
            if not answer:
                sys.exit(f"a process ended early: {self._command}")
            seconds, done, waited = map(float, answer.split())
        self.waited = waited / seconds
        return seconds / done

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
        super().__init__(__file__, "both", folder / "job.yaml", *how)


class TwoParties(Contender):
    """Both parties of a job with one feature party; the feature party's process takes turns, the label party follows.

    `folder` holds everything they write. Through a proxy the bytes between them are counted, and can be delayed.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        *,
        threads: tuple[int, int],
        proxy: bool = False,
        device: str = "cpu",
    ) -> None:
        folder.mkdir()
        job_file = folder / "job.yaml"
        job_file.write_text(job.to_yaml(), encoding="utf-8")
        (party,) = feature_party_names(job.data)
        create_authority(folder / "authority")
        issue(folder / "authority", folder / "certs-label", "label", label=True)
        issue(folder / "authority", folder / f"certs-{party}", party, label=False)
        feature_threads, label_threads = map(str, threads)
        local = ("--device", device)
        home = {HOME: str(folder / "home")}  # not the vault of whoever measures
        self.label = Child(__file__, "label", job_file, "--threads", label_threads, *local, variables=home)
        address = self.label.line()
        self.proxy = Child(PROXY, "--to", address) if proxy else None
        if self.proxy:
            address = f"127.0.0.1:{self.proxy.line()}"
        super().__init__(__file__, "feature", job_file, "--threads", feature_threads, "--connect", address, *local)

    def bytes_carried(self) -> int:
        """Bytes that went through the proxy so far, both ways."""
        assert self.proxy
        self.proxy.tell("count")
        counted = json.loads(self.proxy.line())
        return int(counted["forward"]) + int(counted["back"])

    def delay(self, milliseconds: float) -> None:
        """Have everything delivered so much later, each way."""
        assert self.proxy
        self.proxy.tell(f"delay {milliseconds}")

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


class InTurns(Observer):
    """Takes a turn after every step."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._waiting_since: float | None = None

    def waiting_for(self, peer: str | None) -> None:
        now = time.perf_counter()
        if self._waiting_since is not None:
            self._turns.waited += now - self._waiting_since
        self._waiting_since = now if peer is not None else None

    def at_step(self, done: int, total: int, records: int) -> None:
        self._turns.step_done()


class ShowsAddress(Observer):
    """Prints where the label party listens."""

    def event(self, name: str, **facts: Fact) -> None:
        if name == "listening":
            print(facts["address"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["label", "feature", "both"])
    parser.add_argument("job", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--connect")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32", help="of the role both")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    job = load_job(options.job)
    folder = options.job.parent
    os.environ[HOME] = str(folder / "home")  # the vault of a benchmark is not that of whoever runs it
    if options.role == "both":
        compute_in(options.precision)
        train(job, folder / "run", watching=Watching(InTurns()))
        return
    local = Local(device=options.device)
    if options.role == "label":
        label = local.overridden(listen="127.0.0.1:0", certificates=folder / "certs-label")
        serve(job, label, folder / "run-label", watching=Watching(ShowsAddress()))
        return
    (party,) = feature_party_names(job.data)
    feature = local.overridden(connect=options.connect, certificates=folder / f"certs-{party}")
    join(job, party, feature, folder / "run-feature", watching=Watching(InTurns()))


if __name__ == "__main__":
    main()
