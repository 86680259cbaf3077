"""What two organisations cost: samples per second over a network against the unsplit network, in one run.

Every contender lives in processes of its own on the same cores and works only when it is its turn: so many steps at a
time, round after round. Reported is the median over rounds of the ratio to the unsplit network (2 threads) of the same
round, because the machine's speed drifts more between rounds than within one. Times are wall time of steady steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median, quantiles

import torch
from torch.nn import functional

from tpsl.data.config import SyntheticData
from tpsl.data.dataset import load
from tpsl.models import Bottom, HalfOptimizer, OptimizerConfig, Top
from tpsl.party.feature_party import FeatureTensors
from tpsl.training.job import Job, PrivacyConfig, TrainingConfig, load_job
from tpsl.training.schedule import Schedule

LARGEST_VOCABULARY = 254_000
"""With 39 fields whose sizes grow geometrically from 4 to this, the table has a million rows."""
TEST_FRACTION = 0.01


def criteo_shape(batch: int, steps: int, fields: int, largest_vocabulary: int) -> Job:
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
        privacy=PrivacyConfig(mechanism="none"),
        training=TrainingConfig(
            epochs=1, batch_size=batch, checkpoint_every=1 << 30, feature_optimizer=sgd, label_optimizer=sgd
        ),
    )


class Turns:
    """A contender's side of taking turns: reads how many steps to do, prints the seconds they took, and so on."""

    def __init__(self) -> None:
        self._left = 0
        self._begun = 0.0

    def step_done(self) -> None:
        self._left -= 1
        if self._left == 0:
            print(time.perf_counter() - self._begun, flush=True)
        if self._left <= 0:
            line = sys.stdin.readline()
            if not line:
                sys.exit()
            self._left, self._begun = int(line), time.perf_counter()


class Contender:
    """The processes of one contender; `lead` is the one that takes turns."""

    def __init__(self, lead: subprocess.Popen[str], others: list[subprocess.Popen[str]] | None = None) -> None:
        self.lead, self.others = lead, others or []

    def steps(self, count: int) -> float:
        """Let it do so many steps; return the seconds of one."""
        assert self.lead.stdin and self.lead.stdout
        self.lead.stdin.write(f"{count}\n")
        answer = self.lead.stdout.readline()
        if not answer:
            sys.exit(f"a contender ended early: {self.lead.args!r}")
        return float(answer) / count

    def end(self) -> None:
        for process in (self.lead, *self.others):
            assert process.stdin
            process.stdin.close()
        for process in (self.lead, *self.others):
            process.wait(30)


def started(role: str, job: Path, threads: int) -> subprocess.Popen[str]:
    """Start a process of this program in a role; how many threads it computes with is the role's alone to say."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [sys.executable, __file__, "--role", role, "--job", job, "--threads", str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment,
    )


def unsplit(job: Job) -> None:
    """The whole network in one autograd graph, on the batches of the job."""
    data = load(job.data)
    (held,) = data.feature_parties.values()
    schedule = Schedule(job, data.train, data.test)
    generator = torch.Generator().manual_seed(job.training.seed)
    bottom = Bottom(held.embedding_rows, held.categorical.shape[1], held.numeric.shape[1], job.model, generator)
    top = Top(bottom.width, data.classes, job.model, generator)
    updates = [
        HalfOptimizer(bottom, job.training.feature_optimizer),
        HalfOptimizer(top, job.training.label_optimizer),
    ]
    inputs, labels = FeatureTensors(held), torch.from_numpy(data.labels).float()
    turns = Turns()
    for step in range(schedule.total_steps):
        rows = data.train[schedule.plan.batch(step)]
        z = top(bottom(*inputs.batch(rows)))
        functional.binary_cross_entropy_with_logits(z, labels[torch.from_numpy(rows)]).backward()  # type: ignore[no-untyped-call]
        for update in updates:
            update.step()
        turns.step_done()


ROLES: Mapping[str, Callable[[Job], None]] = {"unsplit": unsplit}


def in_turns(contenders: Mapping[str, Contender], rounds: int, steps: int, warm_up: int) -> dict[str, list[float]]:
    """Return the seconds of a step of every contender in every round."""
    for contender in contenders.values():
        contender.steps(warm_up)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr)
        # Every second round backwards, so that none is always measured after the same one.
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            times[name].append(contenders[name].steps(steps))
    print(file=sys.stderr)
    return times


def report(times: Mapping[str, list[float]], batch: int, baseline: str) -> dict[str, dict[str, float | list[float]]]:
    result: dict[str, dict[str, float | list[float]]] = {}
    for name, seconds in times.items():
        ratios = [base / own for base, own in zip(times[baseline], seconds, strict=True)]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        result[name] = {
            "milliseconds": round(1000 * median(seconds), 2),
            "samples/s": round(batch / median(seconds)),
            f"of {baseline}": round(median(ratios), 3),
            "quartiles": [round(low, 3), round(high, 3)],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--fields", type=int, default=39)
    parser.add_argument("--largest-vocabulary", type=int, default=LARGEST_VOCABULARY)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=8, help="steps of a turn")
    parser.add_argument("--warm-up", type=int, default=5, help="steps of each contender before the first round")
    parser.add_argument("--threads", type=int, default=2, help="of the unsplit network")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        torch.set_num_threads(options.threads)
        ROLES[options.role](load_job(options.job))
        return
    steps = options.warm_up + options.rounds * options.steps
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.yaml"
        shape = criteo_shape(options.batch, steps, options.fields, options.largest_vocabulary)
        job.write_text(shape.to_yaml(), encoding="utf-8")
        contenders = {"unsplit": Contender(started("unsplit", job, options.threads))}
        try:
            times = in_turns(contenders, options.rounds, options.steps, options.warm_up)
        finally:
            for contender in contenders.values():
                contender.end()
    result = report(times, options.batch, "unsplit")
    if options.json:
        print(json.dumps(result))
        return
    for name, figures in result.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
