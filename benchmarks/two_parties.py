"""The two parties of a job as processes on loopback with mutual TLS, for benchmarks: they step when they are told to.

Each party is this program started in its role, and that is `tpsl label serve` or `tpsl feature join` without the live
line. The feature party waits before a step until it is its turn, so several contenders can share a machine without
disturbing one another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from tpsl.data.dataset import feature_party_names
from tpsl.training.job import Job, load_job
from tpsl.training.join import join
from tpsl.training.local import Local
from tpsl.training.observer import Fact, NullObserver, Watching
from tpsl.training.serve import serve
from tpsl.transport.certificates import create_authority, issue

PROXY = Path(__file__).parent.parent / "tests" / "tcp_proxy.py"
TO_END_SECONDS = 60


class Turns:
    """A contender's side of taking turns: reads how many steps to do, prints the seconds they took, and so on.

    Beside them it prints for how many of these seconds a peer was waited for.
    """

    def __init__(self) -> None:
        self._left = 0
        self._begun = 0.0
        self.waited = 0.0

    def step_done(self) -> None:
        self._left -= 1
        if self._left == 0:
            print(time.perf_counter() - self._begun, self.waited, flush=True)
        if self._left <= 0:
            line = sys.stdin.readline()
            if not line:
                sys.exit()
            self._left, self._begun, self.waited = int(line), time.perf_counter(), 0.0


class Child:
    """A process of this program; it ends with its stdin, at the latest with the block that it is used in."""

    def __init__(self, *command: str | Path) -> None:
        # How many threads a contender computes with is for its command alone to say.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self._command = " ".join(map(str, command))
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
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
    """The process of a contender that takes turns."""

    waited = 0.0
    """The share of its last turn in which it waited for a peer."""

    def steps(self, count: int) -> float:
        """Let it do so many steps; return the seconds of one."""
        self.tell(str(count))
        return self._seconds(count)

    def steps_in_flight(self, before: int, count: int) -> float:
        """Let it do so many steps and, without a pause, those that count; return the seconds of one of the latter."""
        self.tell(f"{before}\n{count}")
        self._seconds(before)
        return self._seconds(count)

    def _seconds(self, steps: int) -> float:
        seconds, waited = map(float, self.line().split())
        self.waited = waited / seconds
        return seconds / steps


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
        self.label = Child(__file__, "label", job_file, "--threads", label_threads, *local)
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


class InTurns(NullObserver):
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


class ShowsAddress(NullObserver):
    """Prints where the label party listens."""

    def event(self, name: str, **facts: Fact) -> None:
        if name == "listening":
            print(facts["address"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["label", "feature"])
    parser.add_argument("job", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--connect")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    job = load_job(options.job)
    folder = options.job.parent
    local = Local(device=options.device, vault=folder / "vault")
    if options.role == "label":
        label = local.overridden(listen="127.0.0.1:0", certificates=folder / "certs-label")
        serve(job, label, folder / "run-label", watching=Watching(ShowsAddress()))
        return
    (party,) = feature_party_names(job.data)
    feature = local.overridden(connect=options.connect, certificates=folder / f"certs-{party}")
    join(job, party, feature, folder / "run-feature", watching=Watching(InTurns()))


if __name__ == "__main__":
    main()
