"""How fast data is loaded and put in order, against libraries alone: `python benchmarks/data.py [--json]`.

Loading is from a source to the feature party's checked and encoded features and ids; its baseline is PyArrow's reader
of the same file alone. The baseline of an epoch's order is NumPy's permutation, which is not guaranteed to stay the
same between versions of NumPy. Everything takes turns, several rounds, by CPU time; the ratio is the median over the
rounds. Without Criteo's train.txt, or a part of it, a file of its shape is drawn.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow.csv
import pyarrow.parquet

from tpsl.data.config import SyntheticData
from tpsl.data.dataset import load_feature_party
from tpsl.data.order import permutation
from tpsl_research.clicklog import CriteoData, convert
from tpsl_research.example_data import write_flights, write_synthetic


def draw_clicks(path: Path, rows: int) -> None:
    """Write a file of Criteo's shape: long-tailed counts and categories, a fifth of the counts missing."""
    rng = np.random.default_rng(0)
    numbers = np.floor(rng.lognormal(2, 2, (rows, 13))).astype(np.int64).astype(str)
    numbers[rng.random((rows, 13)) < 0.2] = ""
    categories = np.floor(np.exp(rng.random((rows, 26)) * np.log(np.geomspace(4, 100_000, 26)))).astype(np.uint32)
    labels = rng.integers(0, 2, rows)
    with gzip.open(path, "wt", compresslevel=6) as file:
        for label, counts, values in zip(labels, numbers, categories * np.uint32(2_654_435_761), strict=True):
            file.write("\t".join([str(label), *counts, *(f"{value:08x}" for value in values)]) + "\n")


def read_clicks(path: Path) -> object:
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
    return pyarrow.csv.read_csv(path, options, pyarrow.csv.ParseOptions(delimiter="\t"))


def work(folder: Path, clicks: Path, rows: int | None) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return by name what is measured, and its baseline."""
    flights = write_flights(folder / "flights", rows=rows).config
    synthetic = SyntheticData(rows=rows or 500_000)
    drawn = write_synthetic(folder / "synthetic", synthetic).config
    hashed = CriteoData(path=clicks, categories="hash")
    clicks_data, converted = CriteoData(path=clicks), convert(hashed, folder / "converted")
    order_rows = 10 * synthetic.rows

    def read(path: object) -> Callable[[], object]:
        return lambda: pyarrow.parquet.read_table(str(path))

    def load(config: object) -> Callable[[], object]:
        return lambda: load_feature_party(config)  # type: ignore[arg-type]

    return {
        "flights from Parquet": (load(flights), read(flights.features[0].path)),
        "synthetic from Parquet": (load(drawn), read(drawn.features[0].path)),
        "Criteo's text": (load(clicks_data), lambda: read_clicks(clicks)),
        "Criteo's text, hashed": (load(hashed), lambda: read_clicks(clicks)),
        "Criteo's text into Parquet": (lambda: convert(hashed, folder / "again"), lambda: read_clicks(clicks)),
        "Criteo from Parquet": (load(converted), read(converted.path)),
        "order of an epoch": (
            lambda: permutation(order_rows, 0),
            lambda: np.random.default_rng(0).permutation(order_rows),
        ),
    }


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, help="Criteo's train.txt or a part of it, plain or compressed")
    parser.add_argument("--rows", type=int, help="of each table, if not all flights and 500,000 of the others")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.file is None:
            options.file = folder / "train.txt.gz"
            draw_clicks(options.file, options.rows or 137_139)
        measured = work(folder, options.file, options.rows)
        rounds = [
            {what: (seconds(ours), seconds(baseline)) for what, (ours, baseline) in measured.items()}
            for _ in range(options.rounds)
        ]
    found = {
        what: {
            "seconds": median(each[what][0] for each in rounds),
            "times the baseline": median(each[what][0] / max(each[what][1], 1e-9) for each in rounds),
        }
        for what in measured
    }
    if options.json:
        print(json.dumps(found))
        return
    for what, figures in found.items():
        print(f"{what:<28} {figures['seconds']:8.3f} s, {figures['times the baseline']:6.2f} times the baseline")


if __name__ == "__main__":
    main()
