"""Does the time at which the label party closes its port, or ends, tell a label? An attack on the local head over TLS.

A malicious feature party wants the label of one record. It sends embeddings of zero for all others, so that what the
local head learns, and how soon it stops early, hangs on that label alone. It stays connected after the goodbye and
measures how long the port stays open and, as if it saw a container, how long the label party's process lives. The job
says `gradients: none`, ε = 0: nothing may be learned.

Many jobs are run for each value of the label, in random order, the label party in a process of its own. For each time
a threshold is chosen on one half of the jobs and tried on the other, and the other way round; printed is how often the
label was guessed right, beside the 95 % interval of the same with shuffled labels.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import torch

from tpsl.data.dataset import load_feature_party
from tpsl.models.halves import seed_of
from tpsl.net.asking import Answers
from tpsl.net.certificates import Certificates, create_authority, issue
from tpsl.net.client import LabelClient
from tpsl.net.connection import Patience, Terms
from tpsl.run.job import Job, make_job
from tpsl.run.job_agreement import agreement, limits
from tpsl.run.local import Local
from tpsl.run.observer import Observer, Watching
from tpsl.run.over_network import serve
from tpsl.run.role import FeatureRole, FeatureRun
from tpsl.run.run_folder import RunFolder
from tpsl.run.schedule import Schedule
from tpsl.run.setup import RunSetup
from tpsl.run.stages import attend_as_features
from tpsl.run.stages.collect import HEAD
from tpsl.vault.place import VARIABLE

PARTY = "feature"
WIDTH = 16
POLL = 0.001  # seconds
SHUFFLES = 2000
SEEN = ("port", "process")
FORKS = multiprocessing.get_context("forkserver")


def make_attack_job(folder: Path, records: int) -> Job:
    """A job in which nothing is sent back, on a table of records without meaning."""
    draw = random.Random(1)
    ids = [f"r{number:07d}" for number in range(records)]
    pa_csv.write_csv(pa.table({"id": ids, "x": [draw.gauss(0, 1) for _ in ids]}), folder / "features.csv")
    pa_csv.write_csv(pa.table({"id": ids, "label": [int(draw.random() < 0.3) for _ in ids]}), folder / "labels.csv")
    content = {
        "data": {
            "source": "table",
            "features": [{"party": PARTY, "path": str(folder / "features.csv"), "numeric": ["x"]}],
            "label": {"path": str(folder / "labels.csv")},
        },
        "privacy": {"gradients": "none"},
        "model": {"embedding_dim": 4, "bottom": [WIDTH], "top": [8]},
        "training": {"head": "local"},
    }
    return make_job(content, {}, "attack")


def judging_record(job: Job, train_records: int) -> int:
    """Return a training record that decides when the local head stops: who knows the job knows which do."""
    generator = torch.Generator().manual_seed(seed_of("tpsl local head", job.training.seed))
    return int(torch.randperm(train_records, generator=generator)[0])


class OneRecordShown:
    """The way to a label party that is shown one record and nothing else."""

    def __init__(self, client: LabelClient, schedule: Schedule, target: int) -> None:
        self._client, self._parts, self._target = client, schedule.head_parts(), target

    def agree(self, said: Answers) -> Answers:
        return self._client.agree(said)

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        return self.ask_ahead(method, step, part, said)()

    def ask_ahead(self, method: str, step: int, part: int, said: Answers) -> Callable[[], Answers]:
        message = said[PARTY]
        if method == HEAD and message.tensor is not None:
            embeddings = torch.zeros(message.tensor.shape)
            embeddings[torch.from_numpy(self._parts[part] == self._target)] = 1.0
            message = replace(message, tensor=embeddings)
        return self._client.ask_ahead(method, step, part, {PARTY: message})


def label_party(job: Job, local: Local, run: Path, port: Any) -> None:
    """Serve, in a process of its own."""
    torch.set_num_threads(1)
    os.environ[VARIABLE] = str(run / "home")  # each job has labels of its own, and they are nobody's

    class Listening(Observer):
        def event(self, name: str, **facts: str | int | float) -> None:
            if name == "listening":
                port.value = int(str(facts["address"]).rpartition(":")[2])

    serve(job, local, run, watching=Watching(Listening()))


def attacked(job: Job, folder: Path, run: Path, labels: Path, target: int) -> dict[str, float]:
    """Run one job; return for how many seconds after the goodbye each of `SEEN` was there."""
    port = FORKS.Value("i", 0, lock=False)
    local = Local(certificates=folder / "label", listen="127.0.0.1:0", data=labels)
    label = FORKS.Process(target=label_party, args=(job, local, run / "label", port))
    label.start()
    while not port.value:
        if not label.is_alive():
            raise RuntimeError("the label party has ended before it listened")
        time.sleep(POLL)
    side, own = load_feature_party(job.data, PARTY), RunFolder(run / PARTY)
    with own.started(job, [PARTY]):
        role = FeatureRole(RunSetup(job, own), side)
        terms = Terms(
            limits(job, role.schedule),
            job.training.wire,
            Patience(15.0, 60.0),
        )
        agreed, certificates = agreement(job, side.ids, role.schedule), Certificates.load(folder / PARTY)
        with LabelClient(f"127.0.0.1:{port.value}", PARTY, agreed, terms, certificates=certificates) as client:
            attend_as_features(FeatureRun([role], OneRecordShown(client, role.schedule, target)))
            goodbye = time.perf_counter()
            while is_open(port.value):
                time.sleep(POLL)
            port_closed = time.perf_counter()
            label.join()
            process_ended = time.perf_counter()
    if label.exitcode:
        raise RuntimeError(f"the label party has ended with {label.exitcode}")
    return {"port": port_closed - goodbye, "process": process_ended - goodbye}


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionError:
        return False
    return True


Times = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def cross_validated(times: Times, labels: Labels) -> float:
    """Return how often a threshold that was chosen on one half of the jobs is right about the other."""
    order = np.argsort(labels, kind="stable")
    halves = order[::2], order[1::2]
    right = 0
    for chosen_on, tried_on in (halves, halves[::-1]):
        known = times[chosen_on]
        longer = np.concatenate([known[None, :] > known[:, None], known[None, :] >= known[:, None]])
        scores = (longer == labels[chosen_on]).mean(axis=1)
        best = int(np.abs(scores - 0.5).argmax())
        threshold = known[best % len(known)]
        guessed = times[tried_on] > threshold if best < len(known) else times[tried_on] >= threshold
        right += int(((guessed == (scores[best] >= 0.5)) == labels[tried_on]).sum())
    return right / len(times)


def interval_of_chance(times: Times, labels: Labels) -> tuple[float, float]:
    """Return between which accuracies 95 % of all attacks lie if the times do not depend on the labels.

    The two halves test each other, so that their errors go together: this is wider than for independent guesses.
    """
    generator = np.random.default_rng(0)
    found = [cross_validated(times, generator.permutation(labels)) for _ in range(SHUFFLES)]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def run_jobs(labels: list[int], records: int) -> list[dict[str, float]]:
    """Attack one job for each of these labels of the chosen record."""
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        job = make_attack_job(folder, records)
        create_authority(folder / "authority")
        for party in ("label", PARTY):
            issue(folder / "authority", folder / party, party)
        side = load_feature_party(job.data, PARTY)
        target = int(side.train[judging_record(job, len(side.train))])
        table = pa_csv.read_csv(folder / "labels.csv")
        for value in (0, 1):
            column = table["label"].to_numpy().copy()
            column[table["id"].index(side.ids[target]).as_py()] = value
            changed = table.set_column(table.column_names.index("label"), "label", pa.array(column))
            pa_csv.write_csv(changed, folder / f"labels-{value}.csv")
        for number, value in enumerate(labels):
            run = folder / f"run-{number}"
            run.mkdir()
            found.append(attacked(job, folder, run, folder / f"labels-{value}.csv", target))
            print(f"\r{number + 1}/{len(labels)} jobs", end="", file=sys.stderr)
        print(file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20, help="jobs for each value of the label")
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the jobs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    FORKS.set_forkserver_preload(["tpsl.run.over_network", "torch._dynamo", "pyarrow.pandas_compat"])
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    labels = [0, 1] * options.jobs
    random.Random(options.seed).shuffle(labels)
    found = run_jobs(labels, options.records)
    content: dict[str, Any] = {"jobs": len(labels), "records": options.records}
    truth = np.array(labels)
    for what in SEEN:
        times = np.array([seconds[what] for seconds in found])
        by_label = [times[truth == value].tolist() for value in (0, 1)]
        content[what] = {
            "accuracy": cross_validated(times, truth),
            "chance": interval_of_chance(times, truth),
            "median_seconds": [float(np.median(values)) for values in by_label],
            "range_seconds": [[min(values), max(values)] for values in by_label],
        }
    if options.json:
        print(json.dumps(content))
    else:
        print(f"{len(labels)} jobs of {options.records:,} records")
        for what in SEEN:
            facts = content[what]
            medians = " and ".join(f"{1000 * seconds:.1f}" for seconds in facts["median_seconds"])
            chance = " to ".join(f"{share:.0%}" for share in facts["chance"])
            print(
                f"{what} there after the goodbye: {medians} ms (median, label 0 and 1); "
                f"label guessed right: {facts['accuracy']:.0%} (chance: {chance})"
            )


if __name__ == "__main__":
    main()
