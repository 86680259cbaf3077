"""Data that do not fit into memory: `python benchmarks/large_data.py --rows 5e6 5e7 [--cap 3e9] [--json]`.

Writes Parquet or CSV files, 16 for each party (13 numbers and 26 categories, or as many as asked for; whole numbers for
ids, whose order as text is not that of the files), and trains on them for an epoch in two processes, over mutual TLS on
loopback: with all data in memory, if they are few enough (`--most-in-memory`), and from disk in the order `blockwise`,
where each process may have `--cap` bytes of memory of its own (RLIMIT_DATA: what is allocated, not what is mapped from
files). Prints, for each process, the peak of its own memory and that of all its pages, and samples per second.

Then a feature party alone takes its steps on the same records, from memory in the order `shuffled` and from disk in the
order `blockwise`, in turns of a window each: the median ratio says what reading from disk costs, also on a machine that
has other things to do.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import torch
import yaml

from tpsl.cli.main import main as tpsl
from tpsl.data import out_of_core
from tpsl.data.dataset import load_feature_party
from tpsl.data.features import table_features
from tpsl.data.order import BLOCK_ROWS, WINDOW_BLOCKS
from tpsl.net.certificates import create_authority, issue
from tpsl.run.after_training import evaluate_run
from tpsl.run.build import build_feature_party
from tpsl.run.job import load_job
from tpsl.run.local import Local
from tpsl.run.run_folder import RunFolder
from tpsl.run.schedule import Schedule

FILES = 16
CHUNK_ROWS = 1 << 18
BATCH = 8192
WARM_UP = 6
"""Turns that do not count: the memory for pages is taken in the first ones."""
ORDERS = {"in memory": "shuffled", "from disk": "blockwise"}

PARTY = "party"
"""What the arguments of a process begin with that is one of the parties."""


def be_a_party(cap: str, where: str, *command: str) -> None:
    """Run a command of `tpsl` with a limit on memory (0: none)."""
    if float(cap):
        resource.setrlimit(resource.RLIMIT_DATA, (int(float(cap)),) * 2)
    if where == "in memory":
        out_of_core.LARGE_BYTES = 1 << 50
    sys.argv = ["tpsl", *command]
    tpsl()


def writer_of(path: Path, schema: pa.Schema) -> Any:
    """Return what writes tables into a file of this name."""
    if path.suffix == ".csv":
        return pyarrow.csv.CSVWriter(path, schema)
    return pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")


def generate(folder: Path, rows: int, numbers_each: int, categories_each: int, suffix: str) -> None:
    """Write the files of both parties, each file from a seed of its own."""
    vocabularies = np.geomspace(4, 100_000, categories_each).astype(int)
    bounds = np.linspace(0, rows, FILES + 1).astype(int).tolist()
    for party in ("feature", "label"):
        (folder / party).mkdir(parents=True)
    for number, (begin, end) in enumerate(pairwise(bounds)):
        rng, writers = np.random.default_rng([0, number]), dict[str, Any]()
        for start in range(begin, end, CHUNK_ROWS):
            count = min(CHUNK_ROWS, end - start)
            ids = pa.array(np.arange(start, start + count))
            numbers = [rng.standard_normal(count, dtype=np.float32).round(2) for _ in range(numbers_each)]
            categories = [
                np.exp(rng.random(count, dtype=np.float32) * np.log(size)).astype(np.int32) for size in vocabularies
            ]
            logits = numbers[0] + 0.5 * numbers[1] - 0.5 * numbers[2] * numbers[3] + 0.3 * (categories[5] % 3 - 1)
            named = {f"n{at}": pa.array(values) for at, values in enumerate(numbers)}
            named |= {f"c{at}": pa.array(values) for at, values in enumerate(categories)}
            labels = pa.array((rng.random(count) < 1 / (1 + np.exp(-logits))).astype(np.int8))
            for party, columns in (("feature", named), ("label", {"label": labels})):
                table = pa.table({"id": ids, **columns})
                if party not in writers:
                    writers[party] = writer_of(folder / party / f"part-{number:03}{suffix}", table.schema)
                writers[party].write_table(table)
        for writer in writers.values():
            writer.close()


def columns_of(files: Path) -> list[str]:
    """Return the names of the columns of a party's files."""
    first = min(files.iterdir())
    names: list[str] = pyarrow.dataset.dataset(first, format=first.suffix[1:]).schema.names
    return names


def write_job(folder: Path, order: str) -> Path:
    """Write the job, and the parties' certificates if they are not there."""
    names = columns_of(folder / "feature")
    feature = {
        "path": str(folder / "feature"),
        "numeric": [name for name in names if name[0] == "n"],
        "categorical": [name for name in names if name[0] == "c"],
    }
    job = {
        "data": {"source": "table", "features": [feature], "label": {"path": str(folder / "label")}},
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 4, "bottom": [32], "top": [32]},
        "training": {"epochs": 1, "batch_size": BATCH, "order": order},
    }
    path = folder / f"{order}.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    if not (folder / "authority").exists():
        create_authority(folder / "authority")
        issue(folder / "authority", folder / "certs-label", "label")
        issue(folder / "authority", folder / "certs-feature", "feature")
    return path


class Watched:
    """A party as a process, and the most memory that it had."""

    def __init__(self, folder: Path, job: Path, role: str, cap: float, where: str, *options: str) -> None:
        party = role.split()[0]
        self.run = folder / f"run-{party}-{where.replace(' ', '-')}"
        common = ["--certs", folder / f"certs-{party}", "--out", self.run, "--set", "local.log=none"]
        command = [__file__, PARTY, cap, where, *role.split(), job, *common, *options]
        environment = os.environ | {
            "TPSL_CACHE": str(folder / "cache"),
            "TPSL_HOME": str(folder / f"home-{where.replace(' ', '-')}"),
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # others take address space ahead, which RLIMIT_DATA counts
        }
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)], env=environment, stdout=subprocess.DEVNULL
        )
        self.own = self.all = 0
        self._watching = threading.Thread(target=self._watch)
        self._watching.start()

    def finish(self) -> None:
        """Wait for the end; a failure ends the benchmark."""
        if self.process.wait():
            sys.exit(f"{self.run.name} has failed")
        self._watching.join()

    def result(self) -> dict[str, Any]:
        """Return what the run says of itself."""
        found: dict[str, Any] = json.loads((self.run / "result.json").read_text())
        return found

    def _watch(self) -> None:
        status = Path(f"/proc/{self.process.pid}/status")
        while self.process.poll() is None:
            with suppress(OSError):  # it has just ended
                lines = status.read_text().splitlines()
                found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
                self.own = max(self.own, found.get("RssAnon", 0))
                self.all = max(self.all, sum(found.values()))
            time.sleep(0.05)


def train(folder: Path, where: str, cap: float, device: str) -> dict[str, float]:
    """Train in two processes; return what each took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    for stale in ("cache", *(f"{name}-{where.replace(' ', '-')}" for name in ("home", "run-label", "run-feature"))):
        shutil.rmtree(folder / stale, ignore_errors=True)
    job, begun = write_job(folder, ORDERS[where]), time.perf_counter()
    parties = [
        Watched(folder, job, "label serve", cap, where, "--listen", address, f"--set=local.device={device}"),
        Watched(folder, job, "feature join", cap, where, "--connect", address, f"--set=local.device={device}"),
    ]
    found: dict[str, float] = {}
    for name, party in zip(("label", "feature"), parties, strict=True):
        party.finish()
        found |= {f"{name}_own_bytes": party.own, f"{name}_all_bytes": party.all}
    told = parties[0].result()
    found |= {"seconds": time.perf_counter() - begun, "samples_per_second": told["samples_per_second"]}
    return found | {"test_auc": evaluate_run(RunFolder(parties[0].run), Local()).test_auc}


def turns(folder: Path, rounds: int) -> dict[str, float]:
    """Return samples per second of a feature party from memory and from disk, in turns, and the median ratio."""
    os.environ["TPSL_CACHE"] = str(folder / "cache")
    jobs = {where: load_job(write_job(folder, order)) for where, order in ORDERS.items()}
    held = load_feature_party(jobs["from disk"].data)
    on_disk = table_features(held.features, "this benchmark")
    in_memory = replace(on_disk, categorical=np.array(on_disk.categorical), numeric=np.array(on_disk.numeric))
    sources = {"in memory": in_memory, "from disk": on_disk}
    parties = {where: build_feature_party(jobs[where], held.party, sources[where]) for where in ORDERS}
    schedules = {where: Schedule(jobs[where], held.train, held.test) for where in ORDERS}
    gradients = torch.randn(BATCH, parties["from disk"].bottom.width)
    steps = max(1, min(WINDOW_BLOCKS * BLOCK_ROWS, len(held.train)) // BATCH)
    speeds: dict[str, list[float]] = {where: [] for where in ORDERS}
    for turn in range(WARM_UP + rounds):
        for where, party in parties.items():
            begun = time.perf_counter()
            for step in range(turn * steps, (turn + 1) * steps):
                rows, following = (held.train[schedules[where].batch(at)] for at in (step, step + 1))
                cut = party.forward(rows)
                party.expect(following)
                party.backward(gradients[: len(cut)], len(cut))
                party.update()
            speeds[where].append(steps * BATCH / (time.perf_counter() - begun))
    found = {where: median(speed[WARM_UP:]) for where, speed in speeds.items()}
    pairs = list(zip(speeds["from disk"], speeds["in memory"], strict=True))[WARM_UP:]
    return {**found, "ratio": median(disk / memory for disk, memory in pairs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[5e6])
    parser.add_argument("--numbers", type=int, default=13, help="columns; four at least")
    parser.add_argument("--categories", type=int, default=26, help="columns; six at least")
    parser.add_argument("--format", choices=["parquet", "csv"], default="parquet")
    parser.add_argument("--cap", type=float, default=3e9, help="most memory of a process that trains from disk, bytes")
    parser.add_argument("--most-in-memory", type=float, default=1e7, help="more rows are trained on from disk alone")
    parser.add_argument("--turns", type=int, default=20, help="turns of a feature party alone, on the CPU")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where both parties compute")
    parser.add_argument("--folder", type=Path, help="where files go, and stay; a temporary folder if not given")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    table: dict[str, dict[str, float]] = {}
    alone: dict[str, dict[str, float]] = {}
    for rows in map(int, arguments.rows):
        place = arguments.folder or Path(tempfile.mkdtemp())
        folder = place / str(rows)
        if not folder.exists():
            generate(folder, rows, arguments.numbers, arguments.categories, f".{arguments.format}")
        if rows <= arguments.most_in_memory:
            table[f"{rows:,} in memory"] = train(folder, "in memory", 0, arguments.device)
            if arguments.turns:
                alone[f"{rows:,}"] = turns(folder, arguments.turns)
        table[f"{rows:,} from disk"] = train(folder, "from disk", arguments.cap, arguments.device)
        if arguments.folder is None:
            shutil.rmtree(place)
    if arguments.json:
        print(json.dumps({"training": table, "feature party alone": alone}))
        return
    heads = "", "label own", "all", "feature own", "all", "seconds", "samples/s", "AUC"
    print("{:26} {:>10} {:>7} {:>12} {:>7} {:>8} {:>10} {:>7}".format(*heads))
    for name, row in table.items():
        memory = (row[f"{party}_{kind}_bytes"] / 1e6 for party in ("label", "feature") for kind in ("own", "all"))
        print("{:26} {:7,.0f} MB {:7,.0f} {:9,.0f} MB {:7,.0f}".format(name, *memory), end=" ")
        print(f"{row['seconds']:8,.1f} {row['samples_per_second']:10,.0f} {row['test_auc']:7.4f}")
    for rows_text, found in alone.items():
        speeds = f"{found['in memory']:,.0f} samples/s in memory, {found['from disk']:,.0f} from disk"
        print(f"{rows_text}, feature party alone: {speeds}, ratio {found['ratio']:.2f}")


if __name__ == "__main__":
    be_a_party(*sys.argv[2:]) if sys.argv[1:2] == [PARTY] else main()
