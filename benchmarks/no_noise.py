"""What the means against noise cost where there is no noise: differences in test AUC against plain training.

Flights, without privacy (`mechanism: none`), by the paper's Algorithm 1; then with weight averaging, members, a wide
part, pre-training and the estimator `posterior`, and with `auto` at an ε so large that it flips no label. A seed fixes
initial weights and batches, so the differences are paired.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from tpsl.data.config import FlightsData
from tpsl.data.dataset import load
from tpsl.training.job import make_job
from tpsl.training.one_process import train
from tpsl_research.intervals import mean_estimate

PLAIN = "plain"
LARGE_EPSILON = 30.0
AVERAGING = {"training": {"averaging": 0.995}}
POSTERIOR = {"privacy": {"estimator": "posterior"}}
AUTO = {"privacy": {"mechanism": "auto", "epsilon": LARGE_EPSILON, "estimator": "posterior"}}


def changes(pretraining_epochs: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what each way of training changes in the plain job."""
    pretrain: dict[str, Any] = {"pretrain": {"method": "masked", "epochs": pretraining_epochs}}
    network: dict[str, Any] = {"wide": True, "members": 4}
    return {
        PLAIN: {},
        "averaging": AVERAGING,
        "4 members": {"model": {"members": 4}},
        "wide part": {"model": {"wide": True}},
        "masked pre-training": {"training": pretrain},
        "posterior": POSTERIOR,
        f"auto, ε = {LARGE_EPSILON:g}": AUTO,
        "all of it": {"training": AVERAGING["training"] | pretrain, "model": network} | AUTO,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="only so many flights")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pretraining-epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3, help="at least 2")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = {"source": "flights", "rows": options.rows}
    data = load(FlightsData(rows=options.rows))
    ways = changes(options.pretraining_epochs)
    areas: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(options.seeds):
        plain = {
            "data": source,
            "privacy": {"mechanism": "none", "estimator": "linear", "noise_seed": seed},
            "training": {"epochs": options.epochs, "patience": 0, "seed": seed},
        }
        for name, changed in ways.items():
            print(f"\rseed {seed}, {name:<40}", end="", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                job = make_job(plain, changed, "benchmark")
                areas[name].append(train(job, Path(folder) / "run", data=data).test_auc)
    print(file=sys.stderr)
    result: dict[str, dict[str, Any]] = {}
    for name, own in areas.items():
        result[name] = {"test AUC": round(mean(own), 5), "spread": round(stdev(own), 5)}
        if name != PLAIN:
            change = mean_estimate([a - b for a, b in zip(own, areas[PLAIN], strict=True)])
            result[name] |= {
                "difference": round(change.value, 5),
                "95 % interval": [round(change.low, 5), round(change.high, 5)],
            }
    if options.json:
        print(json.dumps(result))
        return
    for name, row in result.items():
        low, high = row.get("95 % interval", (0, 0))
        against = f"   {row['difference']:+.5f} ({low:+.5f} to {high:+.5f})" if name != PLAIN else ""
        print(f"{name:<32}{row['test AUC']:.5f} ± {row['spread']:.5f}{against}")


if __name__ == "__main__":
    main()
