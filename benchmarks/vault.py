"""Read files into a vault, release, look up, account for and verify it: seconds, seconds per record and peak memory.

    python benchmarks/vault.py 1000000 10000000 100000000 [--rounds N] [--units] [--folder DIR]

Ids are in random order, the hard case for the index. Each stage runs in a process of its own, so that its peak memory
is its own; time counts from when its libraries are imported. With several sizes the last table shows whether time is
linear in the records: CPU seconds per record at each size, the line a + b·records with the least squared relative
error, and the largest over the smallest cost per record beyond a. Smaller sizes are measured up to `--rounds` times, as
often as the largest one has them, and the least time counts: whatever else the machine does only adds to it. The
baseline of each stage is to read the files by PyArrow alone.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpsl.mechanisms import laplace
from tpsl.vault import LabelTable, Vault

BATCH = 1 << 18
FILE_RECORDS = 1 << 20
STEP_BATCH = 8192
MECHANISM = laplace(1.0)


def ids_of(start: int, stop: int) -> Any:
    """Distinct ids that jump around: an odd factor permutes the integers modulo 2^40."""
    return (np.arange(start, stop, dtype=np.int64) * 668_265_263_131) & ((1 << 40) - 1)


def batches(records: int, units: bool, size: int = BATCH) -> Iterator[tuple[Any, Any, Any]]:
    rng = np.random.default_rng(0)
    for start in range(0, records, size):
        ids = ids_of(start, min(start + size, records))
        yield ids, rng.integers(0, 2, len(ids)), ids % max(1, records // 5) if units else None


class Bench:
    """The stages, each with a vault of `records` at `vault` that the stages before it have left there."""

    def __init__(self, vault: Path, records: int, units: bool) -> None:
        self.vault, self.records, self.units = vault, records, units
        self.files = vault.with_name("files")

    def nothing(self) -> None:
        """What importing the libraries takes."""

    def write_files(self) -> None:
        self.files.mkdir()
        size = min(FILE_RECORDS, -(-self.records // 2))
        for number, (ids, labels, units) in enumerate(batches(self.records, self.units, size)):
            columns = {"id": ids, "label": labels} | ({} if units is None else {"unit": units})
            pq.write_table(pa.table(columns), self.files / f"part-{number:05}.parquet")

    def read_files(self) -> None:
        """The baseline."""
        assert sum(len(pq.read_table(path)) for path in self.files.iterdir()) == self.records

    def create(self) -> None:
        table = LabelTable(path=self.files, id="id", label="label", unit="unit" if self.units else None)
        Vault.create(self.vault, batches=table, apart="the records of a benchmark are nobody's").close()
        shutil.rmtree(self.files)

    def release(self) -> None:
        with Vault.open(self.vault) as vault:
            assert vault.release(MECHANISM).released == self.records

    def release_again(self) -> None:
        with Vault.open(self.vault) as vault:
            assert vault.release(MECHANISM).released == 0

    def look_up_in_order(self) -> None:
        with Vault.open(self.vault) as vault:
            vault.noisy_labels(MECHANISM, ids_of(0, self.records))

    def look_up_shuffled(self) -> None:
        wanted = ids_of(0, self.records)
        np.random.default_rng(1).shuffle(wanted)
        with Vault.open(self.vault) as vault:
            vault.noisy_labels(MECHANISM, wanted)

    def look_up_a_batch(self) -> None:
        """What a training step asks for: the labels of a batch that the run has, and of one by its ids."""
        rng = np.random.default_rng(2)
        with Vault.open(self.vault) as vault:
            noisy = vault.noisy_labels(MECHANISM, ids_of(0, min(self.records, 1 << 22)))
            rows = rng.integers(0, len(noisy), (200, STEP_BATCH))
            started = time.perf_counter()
            for batch in rows:
                noisy.take(batch)
            microseconds = (time.perf_counter() - started) / len(rows) * 1e6
            print(f"labels of a batch of {STEP_BATCH:,} records that a run has: {microseconds:.0f} µs")
            shuffled = ids_of(0, self.records)[rng.integers(0, self.records, STEP_BATCH)]
            for name, wanted in (("in order", ids_of(0, STEP_BATCH)), ("random", shuffled)):
                for what, ask in (("labels", partial(vault.noisy_labels, MECHANISM)), ("positions", vault.positions)):
                    started, before = time.perf_counter(), time.process_time()
                    ask(wanted)
                    taken, cpu = time.perf_counter() - started, time.process_time() - before
                    print(f"{what} by ids, {name}: {taken * 1e3:.1f} ms (CPU {cpu * 1e3:.1f} ms)")

    def ledger(self) -> None:
        with Vault.open(self.vault) as vault:
            ledger = vault.ledger()
            assert (ledger.released_records, ledger.epsilon_per_record) == (self.records, MECHANISM.epsilon)

    def statement(self) -> None:
        with Vault.open(self.vault) as vault:
            assert vault.statement()["records"] == self.records

    def verify(self) -> None:
        with Vault.open(self.vault) as vault:
            assert vault.verify() == []

    def stages(self) -> dict[str, Callable[[], None]]:
        return {
            "import": self.nothing,
            "write files": self.write_files,
            "read files": self.read_files,
            "create": self.create,
            "release": self.release,
            "release again": self.release_again,
            "look up in order": self.look_up_in_order,
            "look up shuffled": self.look_up_shuffled,
            "look up a batch": self.look_up_a_batch,
            "ledger": self.ledger,
            "statement": self.statement,
            "verify": self.verify,
        }


LINEAR = ("create", "release", "look up in order", "look up shuffled", "ledger", "statement", "verify")


def run(bench: Bench, stage: str) -> None:
    """Run one stage in this process; the last line says what it took."""

    def cpu() -> float:
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    started, before = time.perf_counter(), cpu()
    bench.stages()[stage]()
    taken = {"seconds": time.perf_counter() - started, "cpu": cpu() - before}
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({**taken, "peak": max(peaks) / 1024}))


def measured(records: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Run all stages for a vault of this size; print and return what each took."""
    found = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "vault"
        command = [sys.executable, __file__, str(records), "--folder", str(path)]
        command += ["--units"] * options.units
        print(f"{records:,} records")
        for stage in Bench(path, records, options.units).stages():
            told = subprocess.run([*command, "--stage", stage], check=True, capture_output=True, text=True).stdout
            *remarks, last = told.splitlines()
            taken = found[stage] = json.loads(last)
            speed = "" if stage == "import" else f"{records / taken['seconds']:14,.0f} records/s"
            time_taken = f"{taken['seconds']:9.1f} s (CPU {taken['cpu']:.1f} s)"
            if "read files" in found:
                speed += f", {taken['cpu'] / found['read files']['cpu']:.1f} times the CPU time of reading the files"
            print(f"{stage:17s} peak {taken['peak']:6.0f} MB {time_taken} {speed}", *remarks, sep="\n  ", flush=True)
        size = sum(file.stat().st_size for file in path.iterdir())
        print(f"vault {size / 1e6:,.0f} MB, {size / records:.1f} bytes for each record\n", flush=True)
    return found


def least_of(records: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure a size one or several times; the least time of each stage, and its largest peak of memory."""
    rounds = [measured(records, options) for _ in range(min(options.rounds, max(options.records) // records))]
    return {
        stage: {
            "cpu": min(found[stage]["cpu"] for found in rounds),
            "peak": max(found[stage]["peak"] for found in rounds),
        }
        for stage in rounds[0]
    }


def print_linearity(found: dict[int, dict[str, dict[str, float]]]) -> None:
    """CPU nanoseconds per record at each size, and the line through them."""
    sizes = np.array(list(found))
    print(f"{'CPU ns per record':17s}", *(f"{size:>12,}" for size in sizes), f"{'largest/least':>14s}  line")
    for stage in LINEAR:
        seconds = np.array([found[size][stage]["cpu"] for size in sizes])
        each = seconds / sizes * 1e9
        slope, start = np.polyfit(sizes, seconds, 1, w=1 / seconds)
        row = " ".join(f"{cost:12.0f}" for cost in each)
        beyond = (seconds - start) / sizes
        ratio = beyond.max() / beyond.min()
        print(f"{stage:17s} {row} {ratio:14.3f}  {start:.2f} s + {slope * 1e9:.0f} ns · records")
    print(f"{'peak MB':17s}", *(f"{max(part['peak'] for part in found[size].values()):12.0f}" for size in sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=int, nargs="*", default=[2_000_000])
    parser.add_argument("--units", action="store_true", help="give each record one of records/5 units")
    parser.add_argument("--rounds", type=int, default=1, help="how often smaller sizes are measured at most")
    parser.add_argument("--folder", type=Path, help="where the vault is made and removed (default: a temporary folder)")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        run(Bench(options.folder, options.records[0], options.units), options.stage)
        return
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    found = {records: least_of(records, options) for records in options.records}
    if len(found) > 1:
        print_linearity(found)


if __name__ == "__main__":
    main()
