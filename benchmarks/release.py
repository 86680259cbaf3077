"""How fast labels are released, and in how much memory: `python benchmarks/release.py [--json]`.

One core. Each mechanism is timed beside two ways to do without it, in the same run and on the same labels:

- `searchsorted`: the same words from the same generator, looked up by plain bisection in the cumulative row;
- `numpy`: NumPy's own generator and distributions (fast, neither secure nor exact, so not private).

What is timed is the release: from true labels to outcomes. (NumPy's noise comes out as floats at once; ours takes one
more look-up, `release.noisy`, when it is used.) Every repetition draws afresh, and the best of them counts. The peak
memory counts everything but the labels of the chunk themselves.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism, gaussian, laplace, randomized_response, secure_words

Labels = npt.NDArray[np.uint8]

MANY = 10
RECORDS = {2: 10_000_000, MANY: 1_000_000}
RECORDS_FOR_MEMORY = 50_000_000
AT_ONCE = 1 << 17
"""Words drawn at once by the baseline, as many as the library draws: larger arrays leave the cache."""


@dataclass(frozen=True)
class Speed:
    """Labels in a second, and how many times as many as each baseline."""

    mechanism: str
    labels_per_second: float
    searchsorted_per_second: float
    numpy_per_second: float
    times_searchsorted: float
    times_numpy: float
    required_per_second: float | None


@dataclass(frozen=True)
class Memory:
    """The largest memory in use at any moment while all records are released chunk by chunk."""

    mechanism: str
    records: int
    chunk: int
    peak_bytes: int
    peak_bytes_per_label_of_a_chunk: float
    resident_growth_after_first_chunk_bytes: int


def by_searchsorted(mechanism: Mechanism, labels: Labels) -> npt.NDArray[np.integer]:
    boundaries = np.cumsum(mechanism.weights[:, :-1], axis=1, dtype=np.uint64)
    coordinates = bool(mechanism.outcome_shape)
    rows = (labels[:, None] == np.arange(mechanism.classes)).ravel() if coordinates else labels
    outcomes = np.empty(len(rows), dtype=mechanism.outcome_dtype)
    stream = secure_words()
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        words, drawn = stream.words(len(part)), outcomes[start : start + AT_ONCE]
        for y, row in enumerate(boundaries):
            mine = np.flatnonzero(part == y)
            drawn[mine] = np.searchsorted(row, words[mine], side="right")
    return outcomes


def numpy_laplace(labels: Labels) -> npt.NDArray[Any]:
    return labels + np.random.default_rng().laplace(0.0, 1.0, len(labels))


def numpy_laplace_many(labels: Labels) -> npt.NDArray[Any]:
    noise = np.random.default_rng().laplace(0.0, 2.0, (len(labels), MANY))
    noise[np.arange(len(labels)), labels] += 1.0
    return noise


def numpy_gaussian(labels: Labels) -> npt.NDArray[Any]:
    return labels + np.random.default_rng().normal(0.0, 1.0, len(labels))


def numpy_response(labels: Labels) -> npt.NDArray[Any]:
    return labels ^ (np.random.default_rng().random(len(labels)) < 1 / (1 + math.e))


def numpy_response_many(labels: Labels) -> npt.NDArray[Any]:
    rng = np.random.default_rng()
    moved = rng.random(len(labels)) < (MANY - 1) / (math.e + MANY - 1)
    return np.where(moved, (labels + rng.integers(1, MANY, len(labels))) % MANY, labels)


CASES: list[tuple[Mechanism, Callable[[Labels], npt.NDArray[Any]], float | None]] = [
    (randomized_response(1.0), numpy_response, 30e6),
    (laplace(1.0), numpy_laplace, 5e6),
    (gaussian(1.0, 1e-5), numpy_gaussian, None),
    (randomized_response(1.0, MANY), numpy_response_many, None),
    (laplace(1.0, MANY), numpy_laplace_many, None),
]


def labels_of(classes: int, count: int) -> Labels:
    return np.random.default_rng(0).integers(0, classes, count, dtype=np.uint8)


def best_seconds(work: Callable[[], object], repetitions: int) -> float:
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure_speed(repetitions: int) -> list[Speed]:
    speeds = []
    for mechanism, by_numpy, required in CASES:
        labels = labels_of(mechanism.classes, RECORDS[mechanism.classes])
        mechanism.release(labels[:1])  # builds the sampler's guide, once for each mechanism
        ours, searched, numpy_own = (
            len(labels) / best_seconds(work, repetitions)
            for work in (
                lambda: mechanism.release(labels),  # noqa: B023 -- called before the loop goes on
                lambda: by_searchsorted(mechanism, labels),  # noqa: B023
                lambda: by_numpy(labels),  # noqa: B023
            )
        )
        speeds.append(Speed(str(mechanism), ours, searched, numpy_own, ours / searched, ours / numpy_own, required))
        progress(f"timed {mechanism}")
    return speeds


def measure_memory() -> list[Memory]:
    measured = []
    for mechanism in (randomized_response(1.0), laplace(1.0)):
        mechanism.release(labels_of(2, 1))
        for chunk in (100_000, 1_000_000, 10_000_000):
            labels = labels_of(2, chunk)
            mechanism.release(labels)
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            tracemalloc.start()
            for _ in range(RECORDS_FOR_MEMORY // chunk):
                mechanism.release(labels)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            # Linux counts in KiB, macOS in bytes.
            unit = 1 if sys.platform == "darwin" else 1024
            growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) * unit
            measured.append(Memory(str(mechanism), RECORDS_FOR_MEMORY, chunk, peak, peak / chunk, growth))
        progress(f"measured the memory of {mechanism}")
    return measured


def progress(message: str) -> None:
    print(message, file=sys.stderr)


def print_tables(speeds: list[Speed], memories: list[Memory]) -> None:
    print(f"{'million labels/s, one core':32} {'tpsl':>8} {'searchsorted':>13} {'numpy':>8}   {'ratios':15} required")
    for s in speeds:
        rates = (
            f"{s.labels_per_second / 1e6:8.1f} {s.searchsorted_per_second / 1e6:13.1f} {s.numpy_per_second / 1e6:8.1f}"
        )
        ratios = f"{s.times_searchsorted:5.1f}x {s.times_numpy:5.2f}x"
        met = ""
        if s.required_per_second is not None:
            verdict = "met" if s.labels_per_second >= s.required_per_second else "MISSED"
            met = f"{s.required_per_second / 1e6:g}, {verdict}"
        print(f"{s.mechanism:32} {rates}   {ratios:15} {met}")
    print()
    print(
        f"{'peak memory, 50 M labels':32} {'chunk':>11} {'peak MB':>9} {'bytes/label':>12} {'growth after 1st, MB':>21}"
    )
    for m in memories:
        sizes = f"{m.peak_bytes / 1e6:9.2f} {m.peak_bytes_per_label_of_a_chunk:12.2f}"
        print(f"{m.mechanism:32} {m.chunk:11,} {sizes} {m.resident_growth_after_first_chunk_bytes / 1e6:21.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--repetitions", type=int, default=5, help="the best of so many counts (default 5)")
    options = parser.parse_args()
    memories = measure_memory()
    speeds = measure_speed(options.repetitions)
    if options.json:
        print(json.dumps({"speed": [asdict(s) for s in speeds], "memory": [asdict(m) for m in memories]}))
    else:
        print_tables(speeds, memories)


if __name__ == "__main__":
    main()
