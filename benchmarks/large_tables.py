"""Tables larger than memory, trained on by two processes: `python benchmarks/large_tables.py --gigabytes 2 [--json]`.

Generates a CSV file for the feature party (100 numbers and 100 categories, ids in random order) and one for the label
party (in another order), trains on them for an epoch over mutual TLS on loopback, and prints the peak resident memory
of each process, the times, and memory over file size. The target: below 3 GB each, whatever the size of the files.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import yaml

from tpsl.net.certificates import create_authority, issue

NUMBERS = CATEGORIES = 100
CHUNK_ROWS = 20_000
BYTES_A_ROW = 1_700
MOST_BYTES = 3e9


def generate(folder: Path, gigabytes: float) -> int:
    """Write feature.csv of about this size and label.csv; return the number of records."""
    rng = np.random.default_rng(0)
    rows = max(CHUNK_ROWS, int(gigabytes * 1e9 / BYTES_A_ROW))
    ids = rng.permutation(rows)
    labels = np.empty(rows, dtype=np.int8)
    vocabularies = np.geomspace(4, 100_000, CATEGORIES).astype(int)
    writer = None
    for start in range(0, rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, rows - start)
        numbers = rng.standard_normal((count, NUMBERS), dtype=np.float32).round(4)
        columns = {"id": pa.array(ids[start : start + count])}
        columns |= {f"n{at}": pa.array(np.ascontiguousarray(numbers[:, at])) for at in range(NUMBERS)}
        for at, size in enumerate(vocabularies):
            values = np.floor(np.exp(rng.random(count) * np.log(size))).astype(np.int64)
            columns[f"c{at}"] = pa.array(values * 2_654_435_761 % 2**32)
        labels[start : start + count] = rng.random(count) < 1 / (1 + np.exp(-2 * numbers[:, 0]))
        table = pa.table(columns)
        writer = writer or pyarrow.csv.CSVWriter(folder / "feature.csv", table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    content = pa.table({"id": pa.array(ids[::-1]), "label": pa.array(labels[::-1])})
    pyarrow.csv.write_csv(content, folder / "label.csv")
    return rows


def write_job(folder: Path) -> Path:
    """Write the job and the parties' certificates."""
    feature = {
        "path": str(folder / "feature.csv"),
        "numeric": [f"n{at}" for at in range(NUMBERS)],
        "categorical": [f"c{at}" for at in range(CATEGORIES)],
    }
    job = {
        "data": {"source": "table", "features": [feature], "label": {"path": str(folder / "label.csv")}},
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 4, "bottom": [32], "top": [32]},
        "training": {"epochs": 1, "batch_size": 8192},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    create_authority(folder / "authority")
    issue(folder / "authority", folder / "certs-label", "label", label=True)
    issue(folder / "authority", folder / "certs-feature", "feature", label=False)
    return folder / "job.yaml"


def start(folder: Path, role: str, *options: str | Path) -> subprocess.Popen[bytes]:
    """Start a party."""
    run = "from tpsl.cli.main import main; main()"
    command = [
        *role.split(),
        folder / "job.yaml",
        "--out",
        folder / f"run-{role.split()[0]}",
        "--log",
        "none",
        *options,
    ]
    environment = os.environ | {"TPSL_CACHE": str(folder / "cache"), "TPSL_HOME": str(folder / "home")}
    return subprocess.Popen([sys.executable, "-c", run, *map(str, command)], env=environment)


def train(folder: Path) -> dict[str, float]:
    """Train in two processes; return what each took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    begun = time.perf_counter()
    parties = {
        "label": start(folder, "label serve", "--listen", address, "--certs", folder / "certs-label"),
        "feature": start(folder, "feature join", "--connect", address, "--certs", folder / "certs-feature"),
    }
    found: dict[str, float] = {}
    for name, process in sorted(parties.items()):
        _, status, used = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"the {name} party has failed")
        found |= {f"{name}_peak_bytes": used.ru_maxrss * 1024.0, f"{name}_cpu_s": used.ru_utime + used.ru_stime}
    return found | {"train_s": time.perf_counter() - begun}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the feature party's file")
    parser.add_argument("--folder", type=Path, help="where files go, and stay; a temporary folder if not given")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        rows = generate(folder, arguments.gigabytes)
        write_job(folder)
        found = {"rows": float(rows), "generate_s": time.perf_counter() - begun}
        size = (folder / "feature.csv").stat().st_size
        found |= {"feature_csv_bytes": float(size), **train(folder)}
        found["feature_peak_over_file"] = found["feature_peak_bytes"] / size
    if arguments.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:<24} {value:16,.2f}")
    assert max(found["feature_peak_bytes"], found["label_peak_bytes"]) < MOST_BYTES


if __name__ == "__main__":
    main()
