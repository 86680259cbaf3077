"""A rehearsal: the real commands of all parties on this machine, over loopback with mutual TLS, timed from outside.

Everything that they make is in a folder of its own and is thrown away: certificates, run folders, the vault.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL

from tpsl.data.dataset import feature_party_names
from tpsl.files import as_yaml, make_private_folder
from tpsl.planning import stopwatch
from tpsl.planning.counting_relay import CountingRelay, free_ports
from tpsl.planning.counts import Counts
from tpsl.planning.stopwatch import Stamp, stamps_in
from tpsl.registry import used
from tpsl.training.job import Job
from tpsl.training.local import Local
from tpsl.training.run_folder import RunFolder
from tpsl.transport.certificates import party_folders
from tpsl.transport.peers import LABEL_PARTY
from tpsl.vault.place import VARIABLE

_CERTIFICATE_DAYS = 2
_LOOK_SECONDS = 0.01
_OTHERS_SECONDS = 2.0
"""How long a party may take to end once it has told another of its own error."""
_STOPPED = "stopped the job"
_MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024  # of the system's figure for the memory of a process

_TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
_ONLY_OF_THE_REAL_RUN = ("start_from", "vault", "data", "alignment", "metrics_port", "party", "listen", "connect")
"""Keys of a local file that a rehearsal leaves out."""
_PERMITTED = {"max_epsilon": 1e6, "max_delta": 1.0, "not_private": True}
"""What is released in a rehearsal leaves neither this machine nor its folder."""


class RehearsalFailed(ValueError):
    """A command that failed; the sentence has its last words."""


@dataclass(frozen=True)
class Deployment:
    """How the parties of a job run: each one's local file, and its number of workers."""

    local: Mapping[str, Local] = field(default_factory=dict)
    label_workers: int = 1
    feature_workers: int = 1

    def workers(self, party: str) -> int:
        """Return the number of processes that a party trains with."""
        return self.label_workers if party == LABEL_PARTY else self.feature_workers

    def machines(self, feature_parties: int) -> int:
        """Return how many machines there are if each worker has one."""
        return self.label_workers + feature_parties * self.feature_workers

    @property
    def pairs(self) -> int:
        """Pairs of a worker of the label party and one of a feature party: each has a part of every batch."""
        return math.lcm(self.label_workers, self.feature_workers)

    def connections(self, job: Job) -> int:
        """Return how many there are between the parties: one for each pair; labels are handed over through one."""
        return len(feature_party_names(job.data)) * (1 if job.hands_over else self.pairs)


@dataclass(frozen=True)
class Rehearsal:
    """What a job took on this machine."""

    job: Job
    counts: Counts
    begun: float
    """When the commands were given, on the clock of the stamps."""
    seconds: float
    """From then to the end of the last one."""
    stamps: Mapping[str, list[Stamp]]
    """What each party's stopwatch says."""
    peak_bytes: Mapping[str, int]
    """The most memory that a process of each party had, with the pages of files that it has mapped."""
    own_bytes: Mapping[str, int]
    """The same without those pages, which the system takes back when it needs them."""
    carried: tuple[int, int] | None
    """Bytes on the connections to the label party and from it, if they were counted."""

    @property
    def trainer(self) -> str:
        """The party that knows of every step: the label party, or who trains alone on its noisy labels."""
        return feature_party_names(self.job.data)[0] if self.job.hands_over else LABEL_PARTY


def rehearse(job: Job, deployment: Deployment, folder: Path, *, counted: bool = False) -> Rehearsal:
    """Run a job once, from the first command to the end of the last, with everything in a new folder.

    Where its bytes are `counted`, connections take a way through a relay.
    """
    make_private_folder(folder)
    commands = _Commands(job, deployment, folder)
    with ExitStack() as stack:
        relay = stack.enter_context(CountingRelay(commands.ports)) if counted else None
        begun = time.monotonic()
        given = [commands.label(), *commands.features(commands.ports if relay is None else relay.ports)]
        running = [stack.enter_context(_started(party, words, folder)) for party, words in given]
        if relay is not None:
            commands.wait_for_label(running)
            relay.open()
        while any(process.peak_bytes is None for process in running):
            _look_at(running)
        carried = None if relay is None else relay.carried
    return Rehearsal(
        job,
        Counts.of(job, commands.records()),
        begun,
        max(process.ended for process in running) - begun,
        {process.party: stamps_in(commands.stamps(process.party)) for process in running},
        {process.party: process.peak_bytes or 0 for process in running},
        {process.party: process.own_bytes for process in running},
        carried,
    )


class _Commands:
    """The files of a rehearsal, and the commands that read them."""

    def __init__(self, job: Job, deployment: Deployment, folder: Path) -> None:
        self._deployment, self._folder, self._features = deployment, folder, feature_party_names(job.data)
        self.ports = free_ports(deployment.label_workers)
        self._job_file = folder / "job.yaml"
        self._job_file.write_text(job.to_yaml(), encoding="utf-8")
        party_folders(folder / "certificates", [LABEL_PARTY, *self._features], _CERTIFICATE_DAYS)

    def label(self) -> tuple[str, list[str]]:
        """Return the label party and its command."""
        return LABEL_PARTY, self._command(LABEL_PARTY, {"listen": f"127.0.0.1:{self.ports[0]}", **_PERMITTED})

    def features(self, ports: list[int]) -> Iterator[tuple[str, list[str]]]:
        """Yield the feature parties and their commands; they find the label party's workers at these ports."""
        connect = ",".join(f"127.0.0.1:{port}" for port in ports)
        for party in self._features:
            yield party, self._command(party, {"connect": connect})

    def stamps(self, party: str) -> Path:
        """Return where a party's stopwatch writes."""
        return self._folder / f"{party}.stamps"

    def records(self) -> int:
        """Return how many records the job had."""
        result = RunFolder(self._run(LABEL_PARTY)).result()
        assert result is not None  # the label party has ended well
        return result.train_records + result.test_records

    def wait_for_label(self, running: list[_Process]) -> None:
        """Wait until the label party can be reached."""
        while not any(stamp.event == "listening" for stamp in stamps_in(self.stamps(LABEL_PARTY))):
            _look_at(running)

    def _run(self, party: str) -> Path:
        return self._folder / f"run-{party}"

    def _command(self, party: str, settings: Mapping[str, object]) -> list[str]:
        local = self._deployment.local.get(party, Local()).model_dump(mode="json", exclude_none=True)
        own = {key: value for key, value in local.items() if key not in _ONLY_OF_THE_REAL_RUN}
        places = {
            "certificates": str(self._folder / "certificates" / party),
            "out": str(self._run(party)),
        }
        file = self._folder / f"{party}.yaml"
        file.write_text(as_yaml({**own, **places, **settings, "party": party}), encoding="utf-8")
        workers = self._deployment.workers(party)
        # After -- nothing is an option of torchrun, even if it looks like one.
        torchrun = [sys.executable, *_TORCHRUN, "--nproc-per-node", str(workers), "--"]
        return [
            *(torchrun if workers > 1 else []),
            *(str(Path(sys.executable).with_name("tpsl")), "--use", ",".join([*used(), stopwatch.__name__])),
            *(("label", "serve") if party == LABEL_PARTY else ("feature", "join")),
            *(str(self._job_file), "--local", str(file)),
            *("--log", f"{stopwatch.NAME}={self.stamps(party)}"),
        ]


class _Process:
    """A command that runs; it leads a group of its own, which ends with it."""

    def __init__(self, party: str, words: list[str], folder: Path) -> None:
        self.party, self._said = party, folder / f"{party}.txt"
        self.ended = 0.0
        self.own_bytes = 0
        self.peak_bytes: int | None = None
        """The most memory of one of its processes; None while it runs."""
        environment = {**os.environ, "TPSL_CACHE": str(folder / "cache"), VARIABLE: str(folder / "home")}
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(  # noqa: S603
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def look(self) -> None:
        """Note its memory and its end; a failure is one of the rehearsal."""
        if self.peak_bytes is not None:
            return
        self.own_bytes = max(self.own_bytes, _own_bytes(self._process.pid))
        found, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if not found:
            return
        self.ended, self.peak_bytes = time.monotonic(), usage.ru_maxrss * _MEMORY_UNIT
        self.own_bytes = self.own_bytes or self.peak_bytes
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode:
            raise RehearsalFailed(f"the rehearsal of {self.party} failed: {self._last_words()}")

    def kill(self) -> None:
        """End it, and all that it has started."""
        if self.peak_bytes is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, SIGKILL)
            self._process.wait()

    def _last_words(self) -> str:
        lines = self._said.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or [line for line in lines if line.strip()] or ["it ended without a word"])[-1]


def _own_bytes(pid: int) -> int:
    """Return what the largest of a process and its children has allocated now; 0 where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    except OSError:
        return 0
    own = re.search(r"^RssAnon:\s*(\d+) kB$", status, re.MULTILINE)
    return max([1024 * int(own[1]) if own else 0, *(_own_bytes(int(child)) for child in children.split())])


@contextmanager
def _started(party: str, words: list[str], folder: Path) -> Iterator[_Process]:
    process = _Process(party, words, folder)
    try:
        yield process
    finally:
        process.kill()


def _look_at(running: list[_Process]) -> None:
    """Note who has ended; of several failures that one is raised which the others were told of."""
    if failures := _failures(running):
        time.sleep(_OTHERS_SECONDS)
        failures += _failures(running)
        raise next((failure for failure in failures if _STOPPED not in str(failure)), failures[0])
    time.sleep(_LOOK_SECONDS)


def _failures(running: list[_Process]) -> list[RehearsalFailed]:
    failures: list[RehearsalFailed] = []
    for process in running:
        try:
            process.look()
        except RehearsalFailed as failure:
            failures.append(failure)
    return failures
