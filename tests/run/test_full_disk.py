"""A disk that is full in the middle of a job, on either side: it ends and names the file, the other side waits.

The same command goes on when there is space.

The weights, the metrics and all that crossed the border are those of one process whose disk was never full.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tpsl.net.certificates import create_authority, issue
from tpsl.run.after_training import evaluate_run
from tpsl.run.job import Job, make_job
from tpsl.run.local import Local
from tpsl.run.one_process import ALL_STEPS, train
from tpsl.run.run_folder import RunFolder
from tpsl.vault import Vault

LIMIT = 60.0

# One side as a process. Where no disk can be filled, a feature party can write no checkpoint while `full` exists.
PARTY = """
import errno, pathlib, time
from contextlib import contextmanager
from tpsl import files
from tpsl.run import checkpoint
from tpsl.run.one_process import ALL_STEPS
from tpsl.run.observer import Observer, Watching
from tpsl.run.over_network import join, serve

opened = files.open_durably

@contextmanager
def opening(path, mode):
    if full and party == "feature" and path.name.startswith(".step-") and pathlib.Path(full).exists():
        raise OSError(errno.ENOSPC, "No space left on device")
    with opened(path, mode) as file:
        yield file

files.open_durably = checkpoint.open_durably = opening

class HalfWay(Observer):
    def at_step(self, done, total, records):
        if done == 25:
            print("half done", flush=True)
            while not pathlib.Path("go").exists():
                time.sleep(0.01)

    def event(self, name, **facts):
        print(name, facts, flush=True)

def say(*words):
    print(*words, flush=True)

common = dict(watching=Watching(HalfWay(), notice=say, connections=say), record_steps=ALL_STEPS)
if party == "label":
    serve(job, local, run, **common)
else:
    join(job, party, local, run, **common)
"""


@pytest.fixture
def job() -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 400, "numeric_fields": 3, "categorical_fields": 2},
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 4, "bottom": [16], "top": [8]},
        "training": {"batch_size": 64, "epochs": 10, "checkpoint_every": 3, "patience": 0},
    }
    return make_job(content, {}, "test")


class Office:
    """Both sides as processes, over mutual TLS; the run folder of each may lie anywhere."""

    def __init__(self, fork: Callable[..., Any], job: Job, folder: Path) -> None:
        self.fork, self.job, self.folder = fork, job, folder
        create_authority(folder / "certs" / "authority")
        for party in ("label", "feature"):
            issue(folder / "certs" / "authority", folder / "certs" / party, party)
        self.processes: dict[str, Any] = {}
        self.full, self.port = "", "0"

    def run(self, party: str) -> Path:
        return self.folder / f"disk-{party}" / "run"

    def start_both(self, full: Path | None = None) -> None:
        self.full = str(full or "")
        self.start("label")
        self.port = self.said("label", r"listening .*:(\d+)'")[1]
        self.start("feature")

    def start(self, party: str) -> None:
        self.run(party).parent.mkdir(exist_ok=True)
        address = {"listen" if party == "label" else "connect": f"127.0.0.1:{self.port}"}
        local = Local(certificates=self.folder / "certs" / party, wait=LIMIT, silence=2.0, **address)
        scope = {"party": party, "job": self.job, "local": local, "run": self.run(party), "full": self.full}
        self.processes[party] = self.fork(PARTY, self.folder, **scope)

    def go(self) -> None:
        """Let both sides go on after the first half."""
        (self.folder / "go").touch()

    def said(self, party: str, pattern: str) -> re.Match[str]:
        """Wait until a side has printed this."""
        until = time.monotonic() + LIMIT
        process = self.processes[party]
        while time.monotonic() < until:
            if found := re.search(pattern, process.stdout.read_text()):
                return found
            assert process.status(0.02) in (None, 0), process.stderr.read_text()
        raise AssertionError(f"{party} did not say {pattern}:\n{process.stdout.read_text()}")

    def complaint(self, party: str, pattern: str) -> re.Match[str]:
        """Wait until a side has ended with an error, and find this at the end of what it said."""
        assert self.processes[party].status(LIMIT) == 1
        found = re.search(pattern, text := self.processes[party].stderr.read_text())
        assert found, text
        return found

    def finished(self) -> None:
        for party, process in self.processes.items():
            assert process.status(LIMIT) == 0, f"{party}: {process.stderr.read_text()}"

    def check(self) -> None:
        """All is as if one process had trained, and the vault has drawn once."""
        vault = RunFolder(self.run("label")).vault()
        with Vault.open(vault) as opened:
            assert [entry.kind for entry in opened.ledger().entries] == ["created", "added", "released"]
        one = self.folder / "one"
        evaluate_run(RunFolder(self.run("label")), Local())
        train(self.job, one, vault=vault, record_steps=ALL_STEPS)
        names = ["label/top.safetensors", "label/metrics.jsonl", "label/trajectory.f32"]
        names += ["feature/bottom.safetensors", "feature/transcript/gradients.f32"]
        for name in names:
            assert (self.run(name.partition("/")[0]) / name).read_bytes() == (one / name).read_bytes(), name
        for party in self.processes:
            assert {path.name for path in self.run(party).rglob(".*")} <= {".lock"}


@pytest.fixture
def office(fork: Callable[..., Any], job: Job, tmp_path: Path) -> Office:
    return Office(fork, job, tmp_path)


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path], None]]:
    """Mount a file system of eight megabytes at a folder, where that is allowed."""
    mounted: list[Path] = []

    def mount(folder: Path) -> None:
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"no small disk to fill: mount says {done.stderr.strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    os.write(file.fileno(), bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return filler


FULL = r"(\S+): cannot be written, the disk is full; free space and give the same command again\n$"


@pytest.mark.parametrize(("party", "other"), [("label", "feature"), ("feature", "label")])
def test_a_side_whose_disk_is_really_full_ends_and_goes_on_by_the_same_command(
    office: Office, small_disk: Callable[[Path], None], party: str, other: str
) -> None:
    disk = office.run(party).parent
    small_disk(disk)
    office.start_both()
    office.said(party, "half done")
    filler = fill(disk)
    office.go()
    assert office.complaint(party, FULL)[1].startswith(str(office.run(party)))
    office.said(other, "lost: .* waiting up to")
    filler.unlink()
    office.start(party)
    office.finished()
    assert "stopped the job" not in office.processes[other].stdout.read_text()
    office.check()


def test_a_side_that_finds_no_space_ends_and_goes_on_by_the_same_command(office: Office, tmp_path: Path) -> None:
    full = tmp_path / "full"
    office.start_both(full)
    office.said("feature", "half done")
    full.touch()
    office.go()
    assert "/checkpoints/step-" in office.complaint("feature", FULL)[1]
    office.said("label", "lost: .* waiting up to")
    full.unlink()
    office.start("feature")
    office.finished()
    office.check()
