"""Create, release, read back, account for and verify a vault; print records per second and peak memory of each stage.

    python benchmarks/vault.py 2000000 [--units] [--folder DIR]

Ids arrive in random order, the hard case for the index. Each stage runs in a process of its own, so that its peak
memory is its own; the share that importing the libraries takes is printed first.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tpsl.mechanisms import laplace
from tpsl.vault import Vault

BATCH = 1 << 18
STAGES = (
    "import",
    "create",
    "release",
    "release again",
    "read in order",
    "read shuffled",
    "read a batch",
    "ledger",
    "statement",
    "verify",
)
STEP_BATCH = 8192


def ids_of(start: int, stop: int) -> Any:
    """Distinct ids that jump around: an odd factor permutes the integers modulo 2^40."""
    return (np.arange(start, stop, dtype=np.int64) * 668_265_263_131) & ((1 << 40) - 1)


def batches(records: int, units: bool) -> Iterator[tuple[Any, Any, Any]]:
    rng = np.random.default_rng(0)
    for start in range(0, records, BATCH):
        ids = ids_of(start, min(start + BATCH, records))
        yield ids, rng.integers(0, 2, len(ids)), ids % max(1, records // 5) if units else None


def read_a_batch(vault: Vault, records: int) -> None:
    """Time what a training step asks for: the labels of a batch that the run has, and of one by its ids."""
    mechanism, rng = laplace(1.0), np.random.default_rng(2)
    noisy = vault.noisy_labels(mechanism, ids_of(0, min(records, 1 << 22)))
    rows = rng.integers(0, len(noisy), (200, STEP_BATCH))
    started = time.perf_counter()
    for batch in rows:
        noisy.take(batch)
    microseconds = (time.perf_counter() - started) / len(rows) * 1e6
    print(f"labels of a batch of {STEP_BATCH:,} records that a run has: {microseconds:.0f} µs")
    shuffled = ids_of(0, records)[rng.integers(0, records, STEP_BATCH)]
    for name, wanted in (("in order", ids_of(0, STEP_BATCH)), ("shuffled", shuffled)):
        started = time.perf_counter()
        vault.noisy_labels(mechanism, wanted)
        print(f"by ids, {name}: {(time.perf_counter() - started) * 1e3:.1f} ms")


def run(stage: str, folder: Path, records: int, units: bool) -> None:
    mechanism = laplace(1.0)
    started, cpu = time.perf_counter(), time.process_time()
    if stage == "create":
        Vault.create(folder, batches=batches(records, units)).close()
    elif stage != "import":
        with Vault.open(folder) as vault:
            if stage.startswith("release"):
                assert vault.release(mechanism).released == (records if stage == "release" else 0)
            elif stage == "read in order":
                for start in range(0, records, BATCH):
                    vault.noisy_labels(mechanism, ids_of(start, min(start + BATCH, records)))
            elif stage == "read shuffled":
                wanted = np.random.default_rng(1).permutation(ids_of(0, records))
                vault.noisy_labels(mechanism, wanted)
            elif stage == "read a batch":
                read_a_batch(vault, records)
            elif stage == "statement":
                assert vault.statement()["records"] == records
            elif stage == "ledger":
                ledger = vault.ledger()
                assert (ledger.released_records, ledger.epsilon_per_record) == (records, mechanism.epsilon)
            else:
                assert vault.verify() == []
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    speed = "" if stage == "import" else f"{seconds:9.1f} s (CPU {cpu:.1f} s) {records / seconds:14,.0f} records/s"
    print(f"{stage:14s} peak {peak:6.0f} MB {speed}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=int, nargs="?", default=2_000_000)
    parser.add_argument("--units", action="store_true", help="give each record one of records/5 units")
    parser.add_argument("--folder", type=Path, help="where the vault is made and removed (default: a temporary folder)")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        run(options.stage, options.folder, options.records, options.units)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "vault"
        command = [sys.executable, __file__, str(options.records), "--folder", str(path)]
        command += ["--units"] * options.units
        for stage in STAGES:
            subprocess.run([*command, "--stage", stage], check=True)
        size = sum(file.stat().st_size for file in path.iterdir())
        print(f"vault {size / 1e6:,.0f} MB, {size / options.records:.1f} bytes for each record")


if __name__ == "__main__":
    main()
