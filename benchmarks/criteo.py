"""Loading Criteo's file beside PyArrow's CSV reader alone: `python benchmarks/criteo.py [FILE] [--json]`.

Loading means: from the file to the feature party's checked and encoded features and ids. Both are measured in turn,
several rounds, by CPU time, and the ratio is the median over the rounds. Without a file, one of its shape is drawn.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.csv

from tpsl.data.dataset import load_feature_party as load
from tpsl_research.clicklog import CriteoData, convert

ROWS = 137_139
ROUNDS = 5
MOST = 4.0


def draw(path: Path) -> None:
    """Write a file of Criteo's shape: long-tailed counts and categories, a fifth of the counts missing."""
    rng = np.random.default_rng(0)
    numbers = np.floor(rng.lognormal(2, 2, (ROWS, 13))).astype(np.int64).astype(str)
    numbers[rng.random((ROWS, 13)) < 0.2] = ""
    vocabularies = np.geomspace(4, 100_000, 26)
    categories = np.floor(np.exp(rng.random((ROWS, 26)) * np.log(vocabularies))).astype(np.uint32)
    labels = rng.integers(0, 2, ROWS)
    with gzip.open(path, "wt", compresslevel=6) as file:
        for label, counts, values in zip(labels, numbers, categories * np.uint32(2_654_435_761), strict=True):
            file.write("\t".join([str(label), *counts, *(f"{value:08x}" for value in values)]) + "\n")


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def read_alone(path: Path) -> object:
    return pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(autogenerate_column_names=True),
        pyarrow.csv.ParseOptions(delimiter="\t"),
    )


def measure(path: Path, folder: Path) -> dict[str, float]:
    indexed, hashed = CriteoData(path=path), CriteoData(path=path, categories="hash")
    converted = convert(indexed, folder)
    load(converted)
    rounds = [
        {
            "pyarrow": seconds(lambda: read_alone(path)),
            "load": seconds(lambda: load(indexed)),
            "load_hashed": seconds(lambda: load(hashed)),
            "convert": seconds(lambda: convert(indexed, folder / "again")),
            "load_converted_again": seconds(lambda: load(converted)),
        }
        for _ in range(ROUNDS)
    ]
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    ratios = {
        f"{name}_over_pyarrow": statistics.median(each[name] / each["pyarrow"] for each in rounds)
        for name in ("load", "load_hashed", "convert")
    }
    return {f"{name}_s": value for name, value in medians.items()} | ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="Criteo's train.txt or a part of it, plain or compressed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        path = arguments.file
        if path is None:
            path = Path(name) / "train.txt.gz"
            draw(path)
        found = measure(path, Path(name) / "converted")
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<28} {value:8.3f}")
    assert found["load_over_pyarrow"] <= MOST


if __name__ == "__main__":
    main()
