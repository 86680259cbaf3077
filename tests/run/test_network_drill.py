"""Network drill: parties over mutual TLS are killed and cut off all the time; what comes out is what one process gives.

The final weights, the metrics and all that crossed the border must be equal to the last bit to those of `train` with
the same vault, and the vault must have drawn once. Kills with SIGKILL come at random moments of one job and before
single file operations; the network breaks in a proxy between two parties that stay alive. TPSL_DRILL_KILLS says how
many kills (4 by default), TPSL_DRILL_CUTS how many cuts (4 by default).
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from tests.ports import free_port

from tpsl.net.certificates import create_authority, issue
from tpsl.run.job import Job, make_job
from tpsl.run.local import Local
from tpsl.run.run_folder import RunFolder
from tpsl.vault import Vault

KILLS = int(os.environ.get("TPSL_DRILL_KILLS", "4"))
CUTS = int(os.environ.get("TPSL_DRILL_CUTS", "4"))
LIMIT = 120.0
"""Seconds for what takes a few when nothing is broken."""

FORKS = multiprocessing.get_context("forkserver")
pytestmark = pytest.mark.usefixtures("forks")  # so that a kill costs no start of torch, and sums have one order

# What a party's command runs. Before the file operation with the number `deadly` in the run folder, or never, the
# process kills itself.
PARTY = r"""
import os, signal, sys, time
os.environ["TPSL_HOME"] = home
from tpsl.run.after_training import evaluate_run
from tpsl.run.one_process import ALL_STEPS
from tpsl.run.observer import Observer, Watching
from tpsl.run.run_folder import RunFolder
from tpsl.run.over_network import join, serve

os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)

def say(*words):
    # In one piece, because all parties write to this log.
    os.write(2, f"{time.time() % 1000:7.3f} {party} [{os.getpid()}] {' '.join(map(str, words))}\n".encode())

class Reported(Observer):
    def at_step(self, done, total, records):
        steps_done.value = done

    def event(self, name, **facts):
        say(name, facts)

operations = 0

def count(event, arguments):
    global operations
    if event in EVENTS and any(FOLDER in str(argument) for argument in arguments):
        operations += 1
        if operations == deadly:
            say("killed before", event, arguments)
            os.kill(os.getpid(), signal.SIGKILL)

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")
FOLDER = str(run)
say("starts")
sys.addaudithook(count)
common = dict(watching=Watching(Reported(), notice=say, connections=say), record_steps=ALL_STEPS)
if party == "label":
    serve(job, local, run, **common)
    evaluate_run(RunFolder(run), local)
else:
    join(job, party, local, run, **common)
say("ends after", operations, "file operations")
operations_done.value = operations
"""

ONE_PROCESS = """
import os
os.environ["TPSL_HOME"] = home
from tpsl.run.one_process import ALL_STEPS, train
train(job, run, vault=vault, record_steps=ALL_STEPS)
"""


def train_alone(job: Job, folder: Path) -> None:
    """Train a job in one process, undisturbed, with the vault of an office, as the run `one` in its folder."""
    scope = {"job": job, "run": folder / "one", "vault": folder / "vault", "home": str(folder / "home")}
    reference = FORKS.Process(target=exec, args=(ONE_PROCESS, scope))
    reference.start()
    reference.join(LIMIT)
    assert reference.exitcode == 0


class Party:
    """One party of a job as a process that can be killed and started again."""

    def __init__(self, name: str, job: Job, folder: Path, **local: Any) -> None:
        self.name, self.job = name, job
        self.local = Local(certificates=folder / "certs" / name, vault=folder / "vault", **local)
        self.run = folder / f"run-{name}"
        self.log, self.home = folder / "log.txt", str(folder / "home")
        self.steps_done, self.operations_done = FORKS.Value("q", 0, lock=False), FORKS.Value("q", 0, lock=False)
        self.process: Any = None

    def start(self, deadly: int = 0) -> None:
        scope = {
            "party": self.name,
            "job": self.job,
            "local": self.local,
            "run": self.run,
            "log": str(self.log),
            "steps_done": self.steps_done,
            "operations_done": self.operations_done,
            "deadly": deadly,
            "home": self.home,
        }
        self.process = FORKS.Process(target=exec, args=(PARTY, scope))
        self.process.start()

    def killed(self) -> bool:
        """Kill it; False if it had ended before."""
        self.process.kill()
        return self.exit_code() == -signal.SIGKILL

    def exit_code(self) -> int:
        self.process.join(LIMIT)
        code = self.process.exitcode
        assert code in (0, -signal.SIGKILL), f"{self.name} ended with {code}:\n{self.log.read_text()}"
        return int(code)


class Office:
    """A job, the certificates of its parties, and the parties; everything in one folder, a run folder each."""

    def __init__(self, folder: Path, job: Job, *, silence: float = 15.0, wait: float = LIMIT) -> None:
        self.folder, self.job = folder, job
        self.names = [file.party for file in job.data.features] if job.data.source == "table" else ["feature"]
        create_authority(folder / "certs" / "authority")
        for name in ("label", *self.names):
            issue(folder / "certs" / "authority", folder / "certs" / name, name)
        self.address = f"127.0.0.1:{free_port()}"
        common = {"silence": silence, "wait": wait}
        self.label = Party("label", job, folder, listen=self.address, **common)
        self.parties = {"label": self.label}
        for name in self.names:
            self.parties[name] = Party(name, job, folder, connect=self.address, **common)

    def start(self) -> None:
        for party in self.parties.values():
            party.start()

    def wait_for_step(self, step: int, *, at_most: float = math.inf) -> None:
        """Wait until so many steps are done, or for so many seconds."""
        begun = time.monotonic()
        while self.label.steps_done.value < step and (waited := time.monotonic() - begun) < at_most:
            for party in self.parties.values():
                assert party.process.exitcode in (None, 0), self.log()
            assert waited < LIMIT, f"step {step} was not reached:\n{self.log()}"
            time.sleep(0.001)

    def finished(self) -> None:
        for party in self.parties.values():
            assert party.exit_code() == 0, self.log()

    def close(self) -> None:
        for party in self.parties.values():
            if party.process is not None:
                party.process.kill()
                party.process.join()

    def log(self) -> str:
        return self.label.log.read_text()

    def check(self) -> None:
        """All is as if one process had trained, undisturbed, with the same vault; and that drew once."""
        vault, one = self.folder / "vault", self.folder / "one"
        check_vault(vault)
        train_alone(self.job, self.folder)
        check_vault(vault)
        apart = {name: content for party in self.parties.values() for name, content in outcome(party.run).items()}
        together = outcome(one)
        assert set(apart) == set(together)
        assert [name for name in together if apart[name] != together[name]] == []
        expected = {"label/top.safetensors", "label/metrics.jsonl"}
        for name in self.names:
            expected |= {f"{name}/bottom.safetensors", f"{name}/transcript/gradients.f32"}
        assert expected <= set(together)
        assert set(RunFolder(self.label.run).confirmed_to("label")) == set(self.names)


def outcome(run: Path) -> dict[str, bytes]:
    """All that must not depend on kills: weights, checkpoints, metrics, transcripts, the top half's trajectory."""
    kinds = ("*.safetensors", "step-*", "metrics.jsonl", "*.i64", "*.f32", "transcript.json", "trajectory.json")
    assert {path.name for path in run.rglob(".*")} <= {".lock"}
    return {str(path.relative_to(run)): path.read_bytes() for kind in kinds for path in run.rglob(kind)}


def check_vault(path: Path) -> None:
    with Vault.open(path) as vault:
        assert vault.verify() == []
        assert [entry.kind for entry in vault.ledger().entries] == ["created", "added", "released"]


STEPS = 12
"""Steps of an epoch of `three_parties`."""
MODEL: dict[str, Any] = {
    "privacy": {"mechanism": "laplace", "epsilon": 1.0},
    "model": {"embedding_dim": 3, "bottom": [6], "top": [5], "wide": True},
}


def three_parties(folder: Path, epochs: int, **training: int) -> Job:
    """Two feature parties and a label party with features."""
    rows = 300
    draw = random.Random(7)
    columns: dict[str, dict[str, list[Any]]] = {
        "airport": {"origin": [draw.choice("abc") for _ in range(rows)]},
        "weather": {"wind": [draw.gauss(0, 1) for _ in range(rows)]},
        "label": {
            "carrier": [draw.choice("xy") for _ in range(rows)],
            "label": [draw.randrange(2) for _ in range(rows)],
        },
    }
    for name, own in columns.items():
        pa_csv.write_csv(pa.table({"id": list(range(rows)), **own}), folder / f"{name}.csv")
    content = {
        **MODEL,
        "data": {
            "source": "table",
            "features": [
                {"party": "airport", "path": str(folder / "airport.csv"), "categorical": ["origin"]},
                {"party": "weather", "path": str(folder / "weather.csv"), "numeric": ["wind"]},
            ],
            "label": {"path": str(folder / "label.csv"), "categorical": ["carrier"]},
        },
        "training": {"batch_size": 20, "epochs": epochs, "checkpoint_every": 5, "patience": 0, **training},
    }
    return make_job(content, {}, "test")


@pytest.fixture
def office() -> Iterator[Callable[..., Office]]:
    """Make an office; its parties end with the test."""
    made: list[Office] = []

    def make(*arguments: Any, **options: Any) -> Office:
        made.append(Office(*arguments, **options))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.mark.drill
def test_kills_at_random_moments_of_one_job_change_nothing(tmp_path: Path, office: Callable[..., Office]) -> None:
    epochs = KILLS + 1
    # Messages are under way in both directions at any moment.
    place = office(tmp_path, three_parties(tmp_path, epochs, micro_batches=2, staleness=1))
    parties = list(place.parties.values())
    moments = random.Random(KILLS)
    place.start()
    for kill in range(KILLS):
        # In the epoch with this number at the latest, so that all kills come before the job ends; half of them soon
        # after the kill before, while a party starts, connects, or agrees with the others on a step.
        soon = moments.random() < 0.5
        place.wait_for_step(
            kill * STEPS + moments.randrange(1, STEPS), at_most=moments.uniform(0, 1) if soon else math.inf
        )
        time.sleep(moments.uniform(0, 0.02))
        victim = moments.choice(parties)
        assert victim.killed(), f"the job ended before kill {kill + 1}:\n{place.log()}"
        victim.start()
    # While they write their last files and say goodbye. Who has ended by then is not counted.
    place.wait_for_step(epochs * STEPS)
    for victim in moments.sample(parties, 2):
        time.sleep(moments.uniform(0, 0.05))
        if victim.killed():
            victim.start()
    place.finished()
    place.check()


@pytest.mark.drill
def test_a_kill_before_any_file_operation_changes_nothing(tmp_path: Path, office: Callable[..., Office]) -> None:
    (tmp_path / "unkilled").mkdir()
    job = three_parties(tmp_path, 1)
    unkilled = office(tmp_path / "unkilled", job)
    unkilled.start()
    unkilled.finished()
    unkilled.check()
    counts = {name: party.operations_done.value for name, party in unkilled.parties.items()}
    assert min(counts.values()) > 40
    operations = [(name, number) for name, count in counts.items() for number in range(1, count + 1)]
    # Half of the kills while it says goodbye: a party that leaves too early would leave others waiting.
    goodbyes = [(name, number) for name, number in operations if number > counts[name] - 8]
    draw = random.Random(9)
    chosen = draw.sample(goodbyes, min(KILLS // 2, len(goodbyes)))
    operations = [operation for operation in operations if operation not in chosen]
    chosen += draw.sample(operations, min(KILLS - len(chosen), len(operations)))
    for victim, number in chosen:
        folder = tmp_path / f"{victim}-{number}"
        folder.mkdir()
        # A party that nobody has told that it may go waits so long.
        place = office(folder, job, silence=2.0, wait=10.0)
        for name, party in place.parties.items():
            party.start(deadly=number if name == victim else 0)
        assert place.parties[victim].exit_code() == -signal.SIGKILL
        place.parties[victim].start()
        place.finished()
        place.check()
        shutil.rmtree(folder)


@pytest.mark.drill
def test_kills_during_a_hand_over_draw_once(tmp_path: Path, office: Callable[..., Office]) -> None:
    """Both sides are killed before a file operation: the labels that crossed stay, and so does the network."""
    content = {
        "data": {"source": "synthetic", "rows": 300, "numeric_fields": 2, "categorical_fields": 2},
        "privacy": MODEL["privacy"],
        "model": {"embedding_dim": 3, "bottom": [6], "top": [5]},
        "training": {"batch_size": 60, "epochs": 1, "exchange": "labels"},
    }
    job = make_job(content, {}, "test")
    counts = {"label": 40, "feature": 40}
    draw = random.Random(3)
    for number in range(max(1, KILLS // 4)):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = office(folder, job, silence=2.0, wait=10.0)
        deadly = {name: draw.randrange(1, count) for name, count in counts.items()}
        for name, party in place.parties.items():
            party.start(deadly[name])
        while any(party.process.exitcode != 0 for party in place.parties.values()):
            for party in place.parties.values():
                assert party.process.exitcode in (None, 0, -signal.SIGKILL), place.log()
                if party.process.exitcode == -signal.SIGKILL:
                    party.start()
            time.sleep(0.02)
        check_vault(folder / "vault")
        train_alone(job, folder)
        together, alone = (
            {name: found for name, found in outcome(run).items() if not name.endswith("metrics.jsonl")}
            for run in (folder / "one", place.parties["feature"].run)
        )
        assert {"label/top.safetensors", "hand-over/feature/noisy_labels.safetensors"} <= set(alone)
        assert alone == together, f"killed before these file operations: {deadly}"
        counts = {name: party.operations_done.value or counts[name] for name, party in place.parties.items()}
        shutil.rmtree(folder)


@pytest.mark.drill
def test_a_network_that_breaks_changes_nothing(
    tmp_path: Path, office: Callable[..., Office], tcp_proxy: Callable[[str], Any]
) -> None:
    steps_between = 30
    content = {
        **MODEL,
        "data": {
            "source": "synthetic",
            "rows": 400,
            "numeric_fields": 2,
            "categorical_fields": 2,
            "largest_vocabulary": 9,
        },
        "training": {
            "batch_size": 32,
            "epochs": (CUTS + 1) * steps_between // 10,
            "checkpoint_every": 20,
            "micro_batches": 2,
            "staleness": 1,
            "wire": "int8",
            "patience": 0,
        },
    }
    silence = 2.0
    place = office(tmp_path, make_job(content, {}, "test"), silence=silence)
    proxy = tcp_proxy(place.address)
    feature = place.parties["feature"]
    feature.local = feature.local.overridden(connect=proxy.address)
    moments = random.Random(CUTS)
    lost = 0
    place.start()
    for cut, kind in zip(range(CUTS), cycle(("drop", "half-open", "gone", "slow", "too slow"))):
        # Three steps more than were done need more than what was under way: the parties are connected again.
        place.wait_for_step(
            max(cut * steps_between + moments.randrange(steps_between), place.label.steps_done.value + 3)
        )
        seconds = moments.uniform(0, 0.5)
        match kind:
            case "drop":
                proxy.cut()
            case "half-open":
                proxy.freeze()
                time.sleep(seconds)
                proxy.thaw()
            case "gone":
                proxy.refuse()
                proxy.cut()
                time.sleep(seconds)
                proxy.thaw()
            case "slow":
                proxy.delay(moments.uniform(10, 100))
                time.sleep(seconds)
                proxy.delay(0)
            case "too slow":
                proxy.delay(2000 * silence)
                time.sleep(1.5 * silence)
                proxy.delay(0)
        lost += kind != "slow"
    place.finished()
    # Every loss was noticed, and no party had to go back to a checkpoint.
    log = place.log()
    assert log.count("] label lost: ") >= lost
    assert log.count("] label connected again") >= lost
    assert "restarted" not in log
    assert "resumed" not in log
    place.check()
