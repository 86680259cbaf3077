"""How fast data is loaded, drawn, written and put in order: `python benchmarks/data.py [--json]`.

Records per second for each source, and the time of one epoch's order beside NumPy's own permutation, which is not
guaranteed to stay the same between versions of NumPy.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tpsl.data.config import FlightsData, SyntheticData
from tpsl.data.dataset import load
from tpsl.data.order import permutation
from tpsl_research.example_data import write_flights, write_synthetic

SYNTHETIC_ROWS = 500_000
FLIGHTS_ROWS = 327_346
ORDER_ROWS = 10_000_000


def best_of(repeats: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def measure() -> dict[str, float]:
    synthetic = SyntheticData(rows=SYNTHETIC_ROWS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flights = write_flights(folder / "flights", "all")
        drawn = write_synthetic(folder / "synthetic", synthetic)
        seconds = {
            "load flights": best_of(3, lambda: load(FlightsData())) / FLIGHTS_ROWS,
            "load flights from Parquet": best_of(3, lambda: load(flights.config)) / FLIGHTS_ROWS,
            "load synthetic": best_of(2, lambda: load(synthetic)) / SYNTHETIC_ROWS,
            "load synthetic from Parquet": best_of(2, lambda: load(drawn.config)) / SYNTHETIC_ROWS,
            "write synthetic": best_of(2, lambda: write_synthetic(folder / "again", synthetic)) / SYNTHETIC_ROWS,
            "order of an epoch": best_of(2, lambda: permutation(ORDER_ROWS, 0)) / ORDER_ROWS,
            "NumPy's permutation": best_of(2, lambda: np.random.default_rng(0).permutation(ORDER_ROWS)) / ORDER_ROWS,
        }
    return {name: 1 / each for name, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    rates = measure()
    if arguments.json:
        print(json.dumps({"records_per_second": rates}))
        return
    for name, rate in rates.items():
        print(f"{name:<30} {rate / 1e6:8.2f} M records/s")


if __name__ == "__main__":
    main()
