"""How long a vault takes to release a noisy statistic, in how much memory: `python benchmarks/release_statistic.py`.

Times are those of the processor, for half of the records of a vault, whose vectors come in blocks of 16,384. `drawn`
is the release; `again` is the same request once more, which draws nothing. `labels` is the time with all labels 1 over
that with all labels 0, the median of nine pairs: it should be 1, since the time must not tell the labels. `memory` is
what the release takes at its peak beside the vectors.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import DEFAULT_BOUND, fit_noise
from tpsl.vault import StatisticPlan, Vault

SIZES = ((2, 200_000, 256), (2, 200_000, 2048), (10, 50_000, 1024), (100, 50_000, 1024))
"""(classes, records, width)."""
AT_ONCE = 16_384
REPEATS = 9


def blocks(records: int, width: int) -> Iterator[npt.NDArray[np.int32]]:
    block = np.random.default_rng(0).integers(-500, 500, (AT_ONCE, width), dtype=np.int32)
    for start in range(0, records, AT_ONCE):
        yield block[: min(AT_ONCE, records - start)]


def release(vault: Vault, plan: StatisticPlan, records: int) -> float:
    started = time.process_time()
    vault.release_statistic(plan, np.arange(0, 2 * records, 2), blocks(records, plan.width))
    return time.process_time() - started


def made(folder: Path, classes: int, labels: npt.NDArray[np.int64]) -> Vault:
    return Vault.create(folder, classes=classes, batches=[(np.arange(len(labels)), labels, None)], scratch=True)


def of_labels(folder: Path, plan: StatisticPlan, classes: int, records: int) -> float:
    """The time with all labels 1 over that with all labels 0."""
    ratios = []
    for repeat in range(REPEATS):
        took = {}
        for label in (repeat % 2, 1 - repeat % 2):
            with made(folder / f"{repeat}-{label}", classes, np.full(2 * records, label)) as vault:
                took[label] = release(vault, plan, records)
        ratios.append(took[1] / took[0])
    return statistics.median(ratios)


def main() -> None:
    print("classes  records  width  drawn s  again s  labels  memory MB")
    for classes, records, width in SIZES:
        plan = StatisticPlan(fit_noise("gaussian", 1.0, 1e-6, DEFAULT_BOUND, classes), DEFAULT_BOUND, width)
        with tempfile.TemporaryDirectory() as folder:
            vault = made(Path(folder) / "vault", classes, np.random.default_rng(1).integers(0, classes, 2 * records))
            drawn, again = release(vault, plan, records), release(vault, plan, records)
            ratio = of_labels(Path(folder), plan, classes, records // 4)
            tracemalloc.start()
            release(vault, plan, records)
            peak = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
        print(f"{classes:7} {records:8} {width:6} {drawn:8.2f} {again:8.2f} {ratio:7.3f} {peak:10.0f}", flush=True)


if __name__ == "__main__":
    main()
