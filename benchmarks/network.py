"""What two organisations cost: samples per second over a network against plain PyTorch, unsplit, in one run.

Every contender lives in processes of its own on the same cores and works only when it is its turn: so many steps at a
time, round after round. Reported is the median over rounds of the ratio to the unsplit network (2 threads) of the same
round, because the machine's speed drifts more between rounds than within one. Times are wall time of steady steps.
Rounds in which other programs took more than a little of the machine do not count, if enough rounds remain.
The split contenders are the two programs on loopback with mutual TLS; bytes are what their TCP connection carries.
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

import torch
from torch import nn
from torch.nn import functional

from tpsl.data.config import SyntheticData
from tpsl.data.dataset import load
from tpsl.data.features import table_features
from tpsl.data.true_labels import reveal
from tpsl.models.config import OptimizerConfig
from tpsl.training.job import Job, PrivacyConfig, TrainingConfig, load_job
from tpsl.training.schedule import Schedule
from tpsl.transport.messages import WireDtype
from tpsl.transport.rounding import wire_bytes
from two_parties import Contender, Turns, TwoParties

LARGEST_VOCABULARY = 254_000
"""With 39 fields whose sizes grow geometrically from 4 to this, the table has a million rows."""
TEST_FRACTION = 0.01
BASELINE = "unsplit"
WIRES: tuple[WireDtype, ...] = ("int8", "bfloat16", "float32")
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
    sgd = OptimizerConfig(name="sgd", learning_rate=0.01)
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


def unsplit(job: Job) -> None:
    """The whole network in plain PyTorch, as a user writes it, on the batches of the job."""
    data = load(job.data)
    (held,) = (table_features(inputs, "the network") for inputs in data.feature_parties.values())
    categories, labels = torch.from_numpy(held.categorical), torch.from_numpy(reveal(data.labels)).float()
    model, steps = job.model, Schedule(job, data.train, data.test)
    embedding = nn.Embedding(held.embedding_rows, model.embedding_dim, sparse=True)
    layers, width = nn.Sequential(), categories.shape[1] * model.embedding_dim
    for next_width in (*model.bottom, *model.top):
        layers.extend([nn.Linear(width, next_width), nn.ReLU()])
        width = next_width
    layers.append(nn.Linear(width, 1))
    optimizer = torch.optim.SGD([*embedding.parameters(), *layers.parameters()], lr=0.01)
    turns = Turns()
    for step in range(steps.total_steps):
        rows = torch.from_numpy(data.train[steps.plan.batch(step)])
        logits = layers(embedding(categories[rows]).flatten(1)).squeeze(1)
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(logits, labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        turns.step_done()


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--fields", type=int, default=39)
    parser.add_argument("--largest-vocabulary", type=int, default=LARGEST_VOCABULARY)
    parser.add_argument("--wire", choices=WIRES, nargs="+", default=WIRES)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=15, help="two at least")
    parser.add_argument("--steps", type=int, default=8, help="steps of a turn")
    parser.add_argument("--warm-up", type=int, default=5, help="steps of each contender before the first round")
    parser.add_argument("--threads", type=int, default=2, help="of the unsplit network")
    parser.add_argument("--feature-threads", type=int, default=2)
    parser.add_argument("--label-threads", type=int, default=2)
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds to wait before a round for other programs to be quiet"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--unsplit", type=Path, metavar="JOB", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.unsplit:
        torch.set_num_threads(options.threads)
        unsplit(load_job(options.unsplit))
        return
    shape = (
        options.batch,
        options.warm_up + options.rounds * options.steps + options.staleness,
        options.fields,
        options.largest_vocabulary,
    )
    overlap = {"micro_batches": options.micro_batches, "staleness": options.staleness}
    jobs = {wire: criteo_shape(*shape, wire, **overlap) for wire in options.wire}
    threads = options.feature_threads, options.label_threads
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        unsplit_job = folder / "job.yaml"
        unsplit_job.write_text(jobs[options.wire[0]].to_yaml(), encoding="utf-8")
        contenders: dict[str, Contender] = {
            BASELINE: Contender(__file__, "--unsplit", unsplit_job, "--threads", str(options.threads))
        }
        for wire, job in jobs.items():
            contenders[wire] = TwoParties(job, folder / wire, threads=threads)
        for contender in contenders.values():
            running.enter_context(contender)
        turns = in_turns(contenders, options.rounds, options.steps, options.warm_up, options.patience)
        result = report(turns, options.batch)
        running.close()
        for wire, job in jobs.items():
            with TwoParties(job, folder / f"{wire} counted", threads=threads, proxy=True) as parties:
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
