"""How fast labels are released, and in how much memory: `python benchmarks/release.py [--json]`. One core.

Noisy labels: each mechanism takes turns with two ways to do without it, on the same labels:

- `searchsorted`: the same words from the same generator, looked up by plain bisection in the cumulative row;
- `numpy`: NumPy's own generator and distributions (fast, neither secure nor exact, so not private).

What is timed is the release: from true labels to outcomes. (NumPy's noise comes out as floats at once; ours takes one
more look-up, `release.noisy`, when it is used.) Every repetition draws afresh, and the best of them counts. The peak
memory counts everything but the labels of the chunk themselves.

Noisy statistics: CPU seconds for half of the records of a vault, whose vectors come in blocks of 16,384. `again` is the
same request once more, which draws nothing. `labels` is the time with all labels 1 over that with all labels 0, the
median of `--pairs`: it should be 1, since the time must not tell the labels.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import (
    DEFAULT_BOUND,
    Mechanism,
    fit_noise,
    gaussian,
    laplace,
    randomized_response,
    secure_words,
)
from tpsl.vault import StatisticPlan, Vault

Labels = npt.NDArray[np.uint8]

MANY = 10
RECORDS = 10_000_000
"""Of two classes; of many a tenth."""
AT_ONCE = 1 << 17
"""Words drawn at once by the baseline, as many as the library draws: larger arrays leave the cache."""
VECTORS_AT_ONCE = 16_384
STATISTICS = ((2, 200_000, 256), (2, 200_000, 2048), (10, 50_000, 1024), (100, 50_000, 1024))
"""(classes, records, width)."""


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


CASES: list[tuple[Mechanism, Callable[[Labels], npt.NDArray[Any]]]] = [
    (randomized_response(1.0), numpy_response),
    (laplace(1.0), numpy_laplace),
    (gaussian(1.0, 1e-5), numpy_gaussian),
    (randomized_response(1.0, MANY), numpy_response_many),
    (laplace(1.0, MANY), numpy_laplace_many),
]


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def label_speeds(mechanism: Mechanism, by_numpy: Callable[[Labels], object], records: int, rounds: int) -> Any:
    """Return millions of labels a second of the three ways, each round one after the other."""
    labels = np.random.default_rng(0).integers(0, mechanism.classes, records, dtype=np.uint8)
    ways: dict[str, Callable[[], object]] = {
        "tpsl": lambda: mechanism.release(labels),
        "searchsorted": lambda: by_searchsorted(mechanism, labels),
        "numpy": lambda: by_numpy(labels),
    }
    ways["tpsl"]()  # builds the sampler's guide, once for each mechanism
    taken = [{name: seconds(way) for name, way in ways.items()} for _ in range(rounds)]
    speeds = {name: records / max(1e-9, min(each[name] for each in taken)) / 1e6 for name in ways}
    return {
        "noisy labels": str(mechanism),
        **{f"{name}, M/s": speed for name, speed in speeds.items()},
        **{f"times {name}": speeds["tpsl"] / speeds[name] for name in ("searchsorted", "numpy")},
    }


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def label_memory(mechanism: Mechanism, chunk: int) -> dict[str, Any]:
    labels = np.random.default_rng(0).integers(0, 2, chunk, dtype=np.uint8)
    peak = peak_bytes(lambda: mechanism.release(labels))
    return {"memory": str(mechanism), "chunk": chunk, "peak MB": peak / 1e6, "bytes a label": peak / chunk}


def vectors(records: int, width: int) -> Iterator[npt.NDArray[np.int32]]:
    block = np.random.default_rng(0).integers(-500, 500, (VECTORS_AT_ONCE, width), dtype=np.int32)
    for start in range(0, records, VECTORS_AT_ONCE):
        yield block[: min(VECTORS_AT_ONCE, records - start)]


def release_statistic(vault: Vault, plan: StatisticPlan, records: int) -> None:
    vault.release_statistic(plan, np.arange(0, 2 * records, 2), vectors(records, plan.width))


def vault_of(folder: Path, classes: int, labels: npt.NDArray[np.int64]) -> Vault:
    return Vault.create(folder, classes=classes, batches=[(np.arange(len(labels)), labels, None)], scratch=True)


def time_by_label(folder: Path, plan: StatisticPlan, classes: int, records: int, pairs: int) -> float:
    """Return the time with all labels 1 over that with all labels 0."""
    ratios = []
    for repeat in range(pairs):
        took = {}
        for label in (repeat % 2, 1 - repeat % 2):
            with vault_of(folder / f"{repeat}-{label}", classes, np.full(2 * records, label)) as vault:
                took[label] = seconds(lambda: release_statistic(vault, plan, records))
        ratios.append(took[1] / took[0])
    return statistics.median(ratios)


def statistic(classes: int, records: int, width: int, pairs: int) -> dict[str, Any]:
    plan = StatisticPlan(fit_noise("gaussian", 1.0, 1e-6, DEFAULT_BOUND, classes), DEFAULT_BOUND, width)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with vault_of(folder / "vault", classes, np.random.default_rng(1).integers(0, classes, 2 * records)) as vault:
            drawn, again = (seconds(lambda: release_statistic(vault, plan, records)) for _ in range(2))
            peak = peak_bytes(lambda: release_statistic(vault, plan, records))
        labels = time_by_label(folder, plan, classes, max(1, records // 4), pairs)
    shape = {"statistic of classes": classes, "records": records, "width": width}
    return {**shape, "drawn, s": drawn, "again, s": again, "labels": labels, "peak MB": peak / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS, help="the most of any measurement")
    parser.add_argument("--repetitions", type=int, default=5, help="the best of so many counts")
    parser.add_argument("--pairs", type=int, default=9, help="of all labels 0 and all labels 1")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [
        label_speeds(mechanism, by_numpy, options.records // (10 if mechanism.classes > 2 else 1), options.repetitions)
        for mechanism, by_numpy in CASES
    ]
    rows += [label_memory(CASES[1][0], min(chunk, options.records)) for chunk in (100_000, 1_000_000, 10_000_000)]
    rows += [
        statistic(classes, min(records, options.records), width, options.pairs)
        for classes, records, width in STATISTICS
    ]
    if options.json:
        print(json.dumps({"measured": rows}))
        return
    for row in rows:
        texts = {key: f"{value:,.3g}" if isinstance(value, float) else str(value) for key, value in row.items()}
        print(", ".join(f"{key} {text}" for key, text in texts.items()))


if __name__ == "__main__":
    main()
