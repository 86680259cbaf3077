"""Parties of several workers over mutual TLS: what comes out is what one process gives, whichever worker is killed.

Each party has a supervisor that does what torchrun does: when a worker ends with an error it ends the others, and
starts all again. TPSL_DRILL_KILLS says in how many runs a worker is killed (1 by default); with more than one, others
are killed soon after it in half of them.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
import torch
from safetensors.torch import load_file
from tests.ports import free_port

from tpsl.net.certificates import create_authority, issue
from tpsl.run.job import Job, make_job
from tpsl.run.local import Local
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.vaults import VaultChoice
from tpsl.vault import NO_LIMITS, Vault

KILLS = int(os.environ.get("TPSL_DRILL_KILLS", "1"))
LIMIT = 120.0
"""Seconds for what takes a few when nothing is broken."""
MOST_STARTS = 20
FORKS = multiprocessing.get_context("forkserver")
pytestmark = pytest.mark.usefixtures("forks")  # so that a start costs no start of torch, and sums have one order

WORKER = r"""
import errno, os, sys, time
from contextlib import contextmanager
os.environ.update(described)
os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
from tpsl.run.observer import Observer, Watching
from tpsl.run.over_network import join, serve
from tpsl import files

full, opened = run.parent / f"disk of {party} is full", files.open_durably

@contextmanager
def opening(path, mode):
    if full.exists():
        raise OSError(errno.ENOSPC, "No space left on device")
    with opened(path, mode) as file:
        yield file

files.open_durably = opening

def say(*words):
    # In one piece, because all workers write to this log.
    os.write(2, f"{time.time() % 1000:7.3f} {party} {described['RANK']} {' '.join(map(str, words))}\n".encode())

class Reported(Observer):
    def at_step(self, done, total, records):
        steps_done.value = done

    def event(self, name, **facts):
        say(name, facts)

watching = Watching(Reported(), notice=say, connections=say)
say("starts")
try:
    serve(job, local, run, watching=watching) if party == "label" else join(job, party, local, run, watching=watching)
except Exception as error:
    say(type(error).__name__, error)
    sys.exit(1)
say("ends")
"""


class Crew:
    """The workers of a party, and what starts them again."""

    def __init__(self, name: str, job: Job, folder: Path, log: Path, **local: Any) -> None:
        self.name, self.job, self.log, self.run = name, job, log, folder / f"run-{name}"
        place = {"certificates": folder.parent / "certs" / name, "vault": folder / "vault", "wait": LIMIT}
        self.local = Local(**place, not_private=True, **local)
        self.steps_done = FORKS.Value("q", 0, lock=False)
        self.starts, self.workers, self._is_stopped = 0, list[Any](), threading.Event()
        self._supervisor: threading.Thread | None = None

    def begin(self, workers: int) -> None:
        self._is_stopped.clear()
        self._supervisor = threading.Thread(target=self._supervise, args=(workers,))
        self._supervisor.start()

    def _supervise(self, workers: int) -> None:
        for self.starts in count(1):
            self.workers = self._started(workers)
            while any(each.exitcode is None for each in self.workers) and not self._is_stopped.is_set():
                if any(each.exitcode for each in self.workers):
                    break
                time.sleep(0.01)
            for each in self.workers:
                if self._is_stopped.is_set() or any(other.exitcode for other in self.workers):
                    each.kill()
                each.join()
            if (
                self._is_stopped.is_set()
                or not any(each.exitcode for each in self.workers)
                or self.starts == MOST_STARTS
            ):
                return

    def _started(self, workers: int) -> list[Any]:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        where |= {"TPSL_HOME": str(self.run.parent / "home")}
        started = []
        for number in range(workers):
            place = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(workers)}
            scope = {"described": {**where, **place}, "log": str(self.log), "party": self.name, "job": self.job}
            scope |= {"local": self.local, "run": self.run, "steps_done": self.steps_done}
            started.append(FORKS.Process(target=exec, args=(WORKER, scope)))
            started[-1].start()
        return started

    def stop(self) -> None:
        self._is_stopped.set()
        self.wait()

    def wait(self) -> None:
        assert self._supervisor is not None
        self._supervisor.join(LIMIT)

    def has_finished(self) -> bool:
        return all(each.exitcode == 0 for each in self.workers)


class Site:
    """A job with its parties, each with several workers."""

    def __init__(self, folder: Path, job: Job) -> None:
        folder.mkdir()
        self.folder, self.log, self.port = folder, folder / "log.txt", free_port()
        common = (job, folder, self.log)
        self.crews = {"label": Crew("label", *common, listen=f"127.0.0.1:{self.port}")}
        for name in job.data.feature_parties:
            self.crews[name] = Crew(name, *common, connect=f"127.0.0.1:{self.port}")

    def begin(self, **workers: int) -> None:
        for name, crew in self.crews.items():
            crew.begin(workers[name])

    def wait_for_step(self, step: int) -> None:
        begun = time.monotonic()
        while self.crews["label"].steps_done.value < step:
            assert time.monotonic() - begun < LIMIT, f"step {step} was not reached:\n{self.log.read_text()}"
            time.sleep(0.001)

    def wait_for_log(self, sentence: str) -> None:
        begun = time.monotonic()
        while sentence not in self.log.read_text():
            assert time.monotonic() - begun < LIMIT, f"{sentence} was not said:\n{self.log.read_text()}"
            time.sleep(0.01)

    def finish(self) -> dict[str, torch.Tensor]:
        for crew in self.crews.values():
            crew.wait()
            assert crew.has_finished(), self.log.read_text()
        vault = self.folder / "vault"
        with Vault.open(vault) as opened:
            assert [entry.kind for entry in opened.ledger().entries] == ["created", "added", "released"]
        return {name: weight for crew in self.crews.values() for name, weight in weights(crew.run).items()}

    def stop(self) -> None:
        for crew in self.crews.values():
            crew.stop()


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in sorted(run.glob("*/*.safetensors")):
        found |= {f"{file.relative_to(run)}:{name}": tensor for name, tensor in load_file(file).items()}
    return found


def three_parties(folder: Path) -> Job:
    """Two feature parties, and a label party with features; 15 steps an epoch."""
    rows, draw = 750, random.Random(7)
    columns: dict[str, dict[str, list[Any]]] = {
        "airport": {"origin": [draw.choice("abcdefg") for _ in range(rows)]},
        "weather": {"wind": [draw.gauss(0, 1) for _ in range(rows)]},
        "label": {
            "carrier": [draw.choice("xyz") for _ in range(rows)],
            "label": [draw.randrange(2) for _ in range(rows)],
        },
    }
    for name, own in columns.items():
        pa_csv.write_csv(pa.table({"id": list(range(rows)), **own}), folder / f"{name}.csv")
    content = {
        "data": {
            "source": "table",
            "features": [
                {"party": "airport", "path": str(folder / "airport.csv"), "categorical": ["origin"]},
                {"party": "weather", "path": str(folder / "weather.csv"), "numeric": ["wind"]},
            ],
            "label": {"path": str(folder / "label.csv"), "categorical": ["carrier"]},
        },
        "privacy": {"mechanism": "laplace", "epsilon": 1.0, "noise_seed": 3},
        "model": {"embedding_dim": 3, "bottom": [6], "top": [5], "wide": True, "embedding_updates": "lazy"},
        "training": {
            "batch_size": 40,
            "epochs": 2,
            "checkpoint_every": 4,
            "staleness": 1,
            "validation": 0.1,
            "patience": 0,
        },
    }
    return make_job(content, {}, "test")


class Place:
    """The job, its certificates, and what an undisturbed run of it ends with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.job = folder, three_parties(folder)
        create_authority(folder / "certs" / "authority")
        for name in ("label", "airport", "weather"):
            issue(folder / "certs" / "authority", folder / "certs" / name, name)
        self._undisturbed: dict[str, torch.Tensor] | None = None

    def site(self, name: str, job: Job | None = None) -> Site:
        return Site(self.folder / name, job or self.job)

    def undisturbed(self) -> Mapping[str, torch.Tensor]:
        """Return the weights of a run with `SEVERAL` workers."""
        if self._undisturbed is None:
            site = self.site("undisturbed")
            site.begin(**SEVERAL)
            self._undisturbed = site.finish()
        return self._undisturbed


SEVERAL = {"label": 2, "airport": 2, "weather": 1}
"""The first worker of a party alone talks to the other parties."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("workers"))


@pytest.fixture
def site(place: Place) -> Iterator[Callable[..., Site]]:
    """Make a site; its workers end with the test."""
    made = []

    def make(*arguments: Any) -> Site:
        made.append(place.site(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def assert_close(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(
            found[name], weight, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_several_workers_of_parties_compute_what_one_process_does(place: Place, site: Callable[..., Site]) -> None:
    vault = VaultChoice(place.folder / "vault of one process", policy=NO_LIMITS)
    train(place.job, place.folder / "one process", vault=vault)
    expected = weights(place.folder / "one process")
    assert_close(place.undisturbed(), expected)
    of_one_party = site("two at one party")
    of_one_party.begin(label=1, airport=2, weather=1)
    assert_close(of_one_party.finish(), expected)


@pytest.mark.drill
def test_a_worker_that_is_killed_changes_nothing(place: Place, site: Callable[..., Site]) -> None:
    everybody = [(name, number) for name, workers in SEVERAL.items() for number in range(workers)]
    draw = random.Random(1)
    for kill, (name, number) in enumerate(islice(cycle(draw.sample(everybody, len(everybody))), KILLS)):
        here = site(f"kill {kill}")
        here.begin(**SEVERAL)
        here.wait_for_step(draw.randrange(2, 26))
        time.sleep(draw.uniform(0, 0.05))
        here.crews[name].workers[number].kill()
        for _ in range(3 if KILLS > 1 and draw.random() < 0.5 else 0):  # while they start, connect and agree
            time.sleep(draw.uniform(0, 2.5))
            draw.choice(here.crews[draw.choice(list(SEVERAL))].workers).kill()
        found = here.finish()
        assert here.crews[name].starts > 1, here.log.read_text()
        assert found.keys() == place.undisturbed().keys()
        assert [name for name, weight in found.items() if not torch.equal(weight, place.undisturbed()[name])] == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["label", "airport"])
def test_a_full_disk_has_all_workers_started_again_and_changes_nothing(
    place: Place, site: Callable[..., Site], name: str
) -> None:
    here = site(f"full disk of {name}")
    here.begin(**SEVERAL)
    here.wait_for_step(6)
    full = here.folder / f"disk of {name} is full"
    full.touch()
    here.wait_for_log("cannot be written, the disk is full")
    full.unlink()
    found = here.finish()
    assert here.crews[name].starts > 1
    assert [name for name, weight in found.items() if not torch.equal(weight, place.undisturbed()[name])] == []


def test_a_run_goes_on_with_other_numbers_of_workers(place: Place, site: Callable[..., Site]) -> None:
    here = site("other numbers")
    here.begin(**SEVERAL)
    here.wait_for_step(9)
    here.stop()
    here.begin(label=1, airport=3, weather=2)
    assert_close(here.finish(), place.undisturbed())
    assert RunFolder(here.crews["label"].run).result() is not None
    log = here.log.read_text()
    assert "resumed" in log, log


@pytest.mark.long
def test_the_workers_of_a_feature_party_train_together_on_labels_that_were_handed_over(
    place: Place, site: Callable[..., Site]
) -> None:
    content = place.job.model_dump(mode="json", exclude_unset=True)
    content["data"]["features"] = content["data"]["features"][:1]
    content["data"]["label"].pop("categorical")
    content["training"]["exchange"] = "labels"
    job = make_job(content, {}, "test")
    here = site("handed over", job)
    here.begin(label=2, airport=2)
    found = here.finish()
    vault = VaultChoice(place.folder / "vault of handed over", policy=NO_LIMITS)
    train(job, place.folder / "handed over in one", vault=vault)
    assert_close(found, weights(place.folder / "handed over in one"))
