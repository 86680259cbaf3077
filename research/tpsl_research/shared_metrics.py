"""What ε lets others know of a model: `python -m tpsl_research.shared_metrics [--data flights] [--draws 200] [--json]`.

Trains one private run, then releases the labels of its test records again and again with seeded noise (for
experiments, not private) and compares what `tpsl label evaluate` would share with the metrics of true labels: the mean
over the draws, their standard deviation, and the standard error that is stated beside each. The deviation is that of
noise alone; the standard error is that of noise and records together.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tpsl.data.dataset import load
from tpsl.data.true_labels import reveal
from tpsl.files import for_json
from tpsl.mechanisms import best_for, identity
from tpsl.run.job import make_job
from tpsl.run.noisy_metrics import Estimate, noisy_metrics
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder

METRICS = ("auc", "log_loss", "accuracy", "squared_calibration_error")


@dataclass(frozen=True)
class Measured:
    """One metric at one ε and number of test records; None where noise drowned it in every draw."""

    records: int
    epsilon: float
    metric: str
    true: float
    mean: float | None
    deviation: float | None
    standard_error: float | None
    drowned: int
    """In how many draws it was NaN."""


def measure(rows: int | None, source: str, draws: int) -> Iterator[Measured]:
    """Train, then measure with all test records and with a tenth of them."""
    data = {"source": source} if rows is None else {"source": source, "rows": rows}
    job = make_job({"data": data, "privacy": {"epsilon": 1.0}, "training": {"epochs": 1}}, {}, "benchmark")
    records = load(job.data)
    with tempfile.TemporaryDirectory() as folder:
        result = train(job, Path(folder) / "run", data=records)
        predicted = RunFolder(Path(folder) / "run").predictions(result.kept_epoch)["test"]
    labels, exact = reveal(records.labels)[records.test], identity(records.classes)
    for some in (len(labels) // 10, len(labels)):
        p, y = predicted[:some], labels[:some]
        true = noisy_metrics(exact, [exact.release(y, 0).outcomes], p)
        for epsilon in (0.1, 0.5, 1.0, 2.0):
            mechanism, _ = best_for(epsilon, records.classes)
            found = [noisy_metrics(mechanism, [mechanism.release(y, seed).outcomes], p) for seed in range(draws)]
            for metric in METRICS:
                estimates: list[Estimate] = [getattr(one, metric) for one in found]
                seen = [one for one in estimates if not math.isnan(one.value)]
                values = [one.value for one in seen]
                yield Measured(
                    some,
                    epsilon,
                    metric,
                    getattr(true, metric).value,
                    float(np.mean(values)) if seen else None,
                    float(np.std(values)) if seen else None,
                    float(np.mean([one.standard_error for one in seen])) if seen else None,
                    draws - len(seen),
                )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="flights", choices=["flights", "synthetic"])
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = list(measure(given.rows, given.data, given.draws))
    if given.json:
        print(json.dumps(for_json({"draws": given.draws, "measured": [asdict(one) for one in found]})))
        return
    print("records   ε    metric                      true     mean     deviation  stated   drowned")
    for one in found:
        numbers = (one.mean, one.deviation, one.standard_error)
        mean, deviation, stated = ("–" if value is None else f"{value:.4f}" for value in numbers)
        print(
            f"{one.records:<9,} {one.epsilon:<4g} {one.metric:<27} {one.true:<8.4f} {mean:<8} {deviation:<10} "
            f"{stated:<8} {one.drowned} of {given.draws}"
        )


if __name__ == "__main__":
    main()
