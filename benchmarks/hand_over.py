"""Split training against labels that are handed over: `python benchmarks/hand_over.py [--rows N]`.

The same job of the flights, vault and seeds, two epochs, both ways in one process. Prints the bytes of all messages
that cross the border, as a network would carry them, and how far the predictions of the test records are apart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tpsl.audit.frame_log import FrameLog
from tpsl.training.job import Job, make_job
from tpsl.training.one_process import load_records, train_together
from tpsl.training.run_folder import RunFolder
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import VaultChoice


def job(exchange: str, rows: int | None) -> Job:
    """Return the job of the flights with one way of exchange."""
    content = {"data": {"source": "flights", "rows": rows}, "training": {"exchange": exchange, "patience": 0}}
    return make_job(content, {}, "benchmark")


def trained(job: Job, run: Path, vault: Path, data: Any) -> tuple[int, float, np.ndarray]:
    """Train and return the bytes that crossed, the seconds, and the predictions of the test records."""
    sizes: list[int] = []

    weighed = partial(FrameLog, watch=lambda frame: sizes.append(frame.size))
    begun = time.perf_counter()
    result = train_together(RunSetup(job, RunFolder(run)), VaultChoice(vault, scratch=True), data, ask_label=weighed)
    return sum(sizes), time.perf_counter() - begun, RunFolder(run).predictions(result.kept_epoch)["test"]


def main() -> None:
    """Train both ways and print what crossed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="use only n records")
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        place, data = Path(folder), load_records(job("gradients", rows))
        found = {way: trained(job(way, rows), place / way, place / "vault", data) for way in ("gradients", "labels")}
    print(f"{len(data.train):,} training records, {job('labels', rows).training.epochs} epochs")
    for way, (size, seconds, _) in found.items():
        bits = 8 * size / len(data.train)
        print(f"exchange {way:<10} {size:>13,} bytes  {bits:>10,.2f} bits a record  {seconds:5.1f} s")
    share = found["labels"][0] / found["gradients"][0]
    apart = float(np.abs(found["labels"][2] - found["gradients"][2]).max())
    print(f"labels need {share:.4%} of the bytes; predictions are at most {apart:g} apart")


if __name__ == "__main__":
    main()
