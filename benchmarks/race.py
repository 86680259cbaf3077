"""Samples per second of this package and of other libraries against plain PyTorch, unsplit, in one run.

    python benchmarks/race.py --batch 64 --way one-process bfloat16 --peer opacus=~/opacus/bin/python

All contenders train the same network on records of the same shape. A way is one in which this package trains: in one
process, the same with `precision: bf16`, the feature party alone with labels that were handed over, or two processes
with this `wire`. A peer is another library in an environment of its own; its program in `contenders` says how to make
it.

Every contender lives in processes of its own on the same cores and works only when it is its turn: so many steps at a
time, round after round. Reported is the median over rounds of the ratio to the unsplit network (2 threads) of the same
round, because the machine's speed drifts more between rounds than within one. Times are wall time of steady steps.
Rounds in which other programs took more than a little of the machine do not count, if enough rounds remain.
Two processes are the two programs on loopback with mutual TLS; bytes are what their TCP connection carries.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import numpy as np

from tpsl.data.config import SyntheticData
from tpsl.data.dataset import load_feature_party
from tpsl.data.features import table_features
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.net.messages import WireDtype
from tpsl.net.rounding import wire_bytes
from tpsl.training.job import Job
from tpsl.training.job_sections import PrivacyConfig, TrainingConfig
from two_parties import Contender, OneProcess, TwoParties

LARGEST_VOCABULARY = 254_000
"""With 39 fields whose sizes grow geometrically from 4 to this, the table has a million rows."""
TEST_FRACTION = 0.01
LEARNING_RATE = 0.01
BASELINE = "unsplit"
WIRES: tuple[WireDtype, ...] = ("int8", "bfloat16", "float32")
WAYS = ("one-process", "bf16", "handed-over", *WIRES)
CONTENDERS = Path(__file__).parent / "contenders"
PEERS = {
    "opacus": "opacus_ghost",
    "nvflare": "nvflare_split",
    "flower": "flower_vertical",
    "secretflow": "secretflow_split",
}
"""The programs of other libraries."""
QUIET = 0.05
"""Share of the machine that others may take in a round that counts."""
LEAST_ROUNDS = 5


class Turn(NamedTuple):
    """What one contender did in one round."""

    seconds: float
    cpu_seconds: float
    taken_by_others: float


def criteo_shape(batch: int, steps: int, fields: int, largest_vocabulary: int, wire: WireDtype, **training: int) -> Job:
    """A job with enough records that no epoch, and so no evaluation and no checkpoint, ends within the steps."""
    sgd = OptimizerConfig(name="sgd", learning_rate=LEARNING_RATE)
    return Job(
        data=SyntheticData(
            rows=int((steps + 2) * batch / (1 - TEST_FRACTION)),
            numeric_fields=0,
            categorical_fields=fields,
            largest_vocabulary=largest_vocabulary,
            test_fraction=TEST_FRACTION,
        ),
        privacy=PrivacyConfig(epsilon=1.0),
        training=TrainingConfig(
            epochs=1,
            batch_size=batch,
            checkpoint_every=1 << 30,
            feature_optimizer=sgd,
            label_optimizer=sgd,
            wire=wire,
            **training,
        ),
    )


def write_task(job: Job, threads: int, folder: Path) -> None:
    """Write what contenders without this package train on: the job's network and records, with labels by chance."""
    assert isinstance(job.data, SyntheticData)
    folder.mkdir()
    side = load_feature_party(job.data)
    held = table_features(side.features, "the network")
    shape = {
        "batch": job.training.batch_size,
        "fields": held.categorical.shape[1],
        "table_rows": held.embedding_rows,
        "embedding_dim": job.model.embedding_dim,
        "bottom": job.model.bottom,
        "top": job.model.top,
        "classes": job.data.classes,
        "learning_rate": LEARNING_RATE,
        "threads": threads,
    }
    (folder / "shape.json").write_text(json.dumps(shape), encoding="utf-8")
    np.save(folder / "categorical.npy", held.categorical[side.train])
    np.save(folder / "labels.npy", np.random.default_rng(0).integers(0, job.data.classes, len(side.train)))


def own_contender(way: str, job: Job, folder: Path, options: argparse.Namespace) -> Contender:
    """Start one of the ways in which this package trains."""
    if way in WIRES:
        return TwoParties(with_wire(job, way), folder, threads=(options.feature_threads, options.label_threads))
    if way == "handed-over":
        return OneProcess(job.with_labels_handed_over(), folder, threads=options.threads)
    return OneProcess(job, folder, threads=options.threads, precision="bf16" if way == "bf16" else "float32")


def with_wire(job: Job, wire: str) -> Job:
    return job.model_copy(update={"training": job.training.model_copy(update={"wire": wire})})


def peer(text: str) -> tuple[str, Path]:
    name, _, python = text.partition("=")
    if name not in PEERS or not python:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=PYTHON with a name of {', '.join(PEERS)}")
    return name, Path(python).absolute()


def machine_seconds() -> float:
    """CPU time that anybody took of this machine so far; what a hypervisor took counts too."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text(encoding="utf-8").split("\n")[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def turn(contender: Contender, steps: int) -> Turn:
    begun, machine, own = time.perf_counter(), machine_seconds(), contender.cpu_seconds()
    seconds = contender.steps(steps)
    own = contender.cpu_seconds() - own
    others = machine_seconds() - machine - own
    elapsed = (time.perf_counter() - begun) * (os.cpu_count() or 1)
    return Turn(seconds, own / steps, max(0.0, others / elapsed))


def wait_until_quiet(at_most: float) -> None:
    """Wait until nobody takes much of the machine, or so many seconds."""
    until = time.perf_counter() + at_most
    while time.perf_counter() < until:
        before, busy = time.perf_counter(), machine_seconds()
        time.sleep(0.3)
        if machine_seconds() - busy <= QUIET * (time.perf_counter() - before) * (os.cpu_count() or 1):
            return


def in_turns(
    contenders: Mapping[str, Contender], rounds: int, steps: int, warm_up: int, patience: float
) -> dict[str, list[Turn]]:
    """Return every contender's turns, one for each round; a round begins when the machine is quiet."""
    for contender in contenders.values():
        contender.steps(warm_up)
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    for number in range(rounds):
        print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr)
        wait_until_quiet(patience)
        # Every second round backwards, so that none is always measured after the same one.
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            turns[name].append(turn(contenders[name], steps))
    print(file=sys.stderr)
    return turns


def report(turns: Mapping[str, list[Turn]], batch: int) -> dict[str, dict[str, Any]]:
    every = list(zip(*turns.values(), strict=True))
    quiet = [number for number, turns_ in enumerate(every) if max(t.taken_by_others for t in turns_) <= QUIET]
    counted = quiet if len(quiet) >= min(LEAST_ROUNDS, len(every)) else range(len(every))
    result: dict[str, dict[str, Any]] = {}
    for name, own in turns.items():
        seconds = [own[number].seconds for number in counted]
        ratios = [turns[BASELINE][number].seconds / own[number].seconds for number in counted]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        result[name] = {
            "milliseconds": round(1000 * median(seconds), 2),
            "CPU milliseconds": round(1000 * median(own[number].cpu_seconds for number in counted), 2),
            "samples/s": round(batch / median(seconds)),
            f"of {BASELINE}": round(median(ratios), 3),
            "quartiles": [round(low, 3), round(high, 3)],
            "rounds": len(counted),
            "taken by others": round(median(own[number].taken_by_others for number in counted), 3),
        }
    return result


def bytes_per_tensor_byte(parties: TwoParties, steps: int, tensor: int) -> float:
    """What the connection carries for a byte of embeddings and gradients."""
    parties.steps(1)
    before = parties.bytes_carried()
    parties.steps(steps)
    return (parties.bytes_carried() - before) / (2 * tensor * steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--fields", type=int, default=39)
    parser.add_argument("--largest-vocabulary", type=int, default=LARGEST_VOCABULARY)
    parser.add_argument("--embedding-dim", type=int, default=16)
    parser.add_argument("--cut", type=int, default=128, help="width of the cut")
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--way", choices=WAYS, nargs="+", default=WAYS)
    parser.add_argument("--peer", type=peer, nargs="+", default=[], metavar="NAME=PYTHON", help=", ".join(PEERS))
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=15, help="two at least")
    parser.add_argument("--steps", type=int, default=8, help="steps of a turn")
    parser.add_argument("--warm-up", type=int, default=5, help="steps of each contender before the first round")
    parser.add_argument("--threads", type=int, default=2, help="of contenders with one process")
    parser.add_argument("--feature-threads", type=int, default=2)
    parser.add_argument("--label-threads", type=int, default=2)
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds to wait before a round for other programs to be quiet"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    steps = options.warm_up + options.rounds * options.steps + options.staleness
    job = criteo_shape(
        options.batch,
        steps,
        options.fields,
        options.largest_vocabulary,
        "float32",
        micro_batches=options.micro_batches,
        staleness=options.staleness,
    )
    model = ModelConfig(embedding_dim=options.embedding_dim, bottom=(128, options.cut), top=(128, 128))
    job = job.model_copy(
        update={"data": job.data.model_copy(update={"classes": options.classes}), "model": model},
    )
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        write_task(job, options.threads, folder / "task")
        contenders = {BASELINE: Contender(CONTENDERS / "unsplit.py", folder / "task")}
        contenders |= {way: own_contender(way, job, folder / way, options) for way in options.way}
        for library, python in options.peer:
            (folder / library).mkdir()
            program = CONTENDERS / f"{PEERS[library]}.py"
            contenders[library] = Contender(program, folder / "task", python=python, folder=folder / library)
        for contender in contenders.values():
            running.enter_context(contender)
        turns = in_turns(contenders, options.rounds, options.steps, options.warm_up, options.patience)
        result = report(turns, options.batch)
        running.close()
        for wire in (wire for wire in WIRES if wire in options.way):
            threads = options.feature_threads, options.label_threads
            with TwoParties(with_wire(job, wire), folder / f"{wire} counted", threads=threads, proxy=True) as parties:
                tensor = wire_bytes((options.batch, job.model.cut_width("feature")), wire)
                carried = bytes_per_tensor_byte(parties, options.steps, tensor)
            result[wire]["bytes per tensor byte"] = round(carried, 4)
    if options.json:
        print(json.dumps(result))
        return
    for name, figures in result.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
