"""What `staleness` gains over a long distance, and what it costs in accuracy.

Gain: the two programs talk through a proxy that delivers everything half a round trip later; samples per second with
the forward pass up to s updates ahead, against s = 0, the settings taking turns. A turn is timed in full flight: the
batches that are under way when it begins are as many as when it ends.

Cost (`--accuracy`): flights, in process, which computes the same bits as the two programs; test AUC over seeds, with
staleness and, beside it, with numbers that are rounded on the wire. A seed fixes initial weights,
batches and noise, so that differences between the rows of a column come from the setting alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch

from tpsl.data.config import FlightsData, SyntheticData
from tpsl.data.dataset import Dataset, load
from tpsl.training.job import Job
from tpsl.training.job_sections import PrivacyConfig, TrainingConfig
from tpsl.training.one_process import train
from two_parties import TwoParties

SETTINGS: dict[str, dict[str, Any]] = {
    "staleness 0, float32": {},
    **{f"staleness {number}": {"staleness": number} for number in (1, 2, 4)},
    **{f"wire {wire}": {"wire": wire} for wire in ("bfloat16", "int8")},
}
"""Settings of training whose cost in accuracy is measured; the first is the one that the others are compared with."""


def far_away(batch: int, steps: int, staleness: int) -> Job:
    """A job with enough records that no epoch, and so no evaluation and no checkpoint, ends within the steps."""
    return Job(
        data=SyntheticData(rows=2 * (steps + staleness + 2) * batch, test_fraction=0.5),
        training=TrainingConfig(epochs=1, batch_size=batch, checkpoint_every=1 << 30, staleness=staleness),
    )


def throughput(batch: int, rounds: int, steps: int, round_trip: float, largest: int) -> dict[str, dict[str, float]]:
    """Samples per second for each setting, and its ratio to no staleness: the median over rounds."""
    into_flight = largest + 1
    every_step = 1 + rounds * (into_flight + steps)
    seconds: dict[int, list[float]] = {staleness: [] for staleness in range(largest + 1)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        contenders = {}
        for staleness in seconds:
            job = far_away(batch, every_step, staleness)
            parties = TwoParties(job, Path(folder) / str(staleness), threads=(1, 1), proxy=True)
            contenders[staleness] = running.enter_context(parties)
            parties.steps(1)
            parties.delay(round_trip / 2)
        for number in range(rounds):
            print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr)
            for staleness, parties in contenders.items():
                seconds[staleness].append(parties.steps_in_flight(into_flight, steps))
        print(file=sys.stderr)
    return {
        f"staleness {staleness}": {
            "milliseconds": round(1000 * median(own), 2),
            "samples/s": round(batch / median(own)),
            "of staleness 0": round(median(base / s for base, s in zip(seconds[0], own, strict=True)), 3),
        }
        for staleness, own in seconds.items()
    }


def accuracy(seeds: int, epochs: int, rows: int | None) -> dict[str, dict[str, Any]]:
    """Test AUC for each mechanism and setting: the mean and the standard deviation over seeds."""
    data = load(FlightsData(rows=rows))
    result: dict[str, dict[str, Any]] = {}
    for mechanism in ("ε = 1", "not private"):
        found = {
            setting: [flights_auc(data, mechanism, setting, seed, epochs, rows) for seed in range(seeds)]
            for setting in SETTINGS
        }
        base = next(iter(found.values()))
        for setting, own in found.items():
            changes = [auc - without for auc, without in zip(own, base, strict=True)]
            result[f"{mechanism}, {setting}"] = {
                "test AUC": round(mean(own), 5),
                "spread": round(spread(own), 5),
                "change": round(mean(changes), 5),
                "spread of change": round(spread(changes), 5),
            }
    return result


def flights_auc(data: Dataset, mechanism: str, setting: str, seed: int, epochs: int, rows: int | None) -> float:
    print(f"\r{mechanism}, {setting}, seed {seed}   ", end="", file=sys.stderr, flush=True)
    private = PrivacyConfig(epsilon=1.0, noise_seed=seed)
    job = Job(
        data=FlightsData(rows=rows),
        privacy=private if mechanism == "ε = 1" else PrivacyConfig(mechanism="none"),
        training=TrainingConfig(epochs=epochs, patience=0, seed=seed, **SETTINGS[setting]),
    )
    with tempfile.TemporaryDirectory() as folder:
        return train(job, Path(folder) / "run", data=data).test_auc


def spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--largest", type=int, default=2, help="compare staleness 0 to this")
    parser.add_argument("--round-trip", type=float, default=100.0, help="milliseconds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn")
    parser.add_argument("--accuracy", action="store_true", help="measure the cost too; takes minutes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, help="only so many flights")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, dict[str, dict[str, Any]]] = {
        "throughput": throughput(options.batch, options.rounds, options.steps, options.round_trip, options.largest)
    }
    if options.accuracy:
        result["accuracy"] = accuracy(options.seeds, options.epochs, options.rows)
    if options.json:
        print(json.dumps(result))
        return
    for table in result.values():
        columns = next(iter(table.values()))
        print(f"{'':<34}" + "".join(f"{column:>18}" for column in columns))
        for name, figures in table.items():
            print(f"{name:<34}" + "".join(f"{value:>18}" for value in figures.values()))


if __name__ == "__main__":
    main()
