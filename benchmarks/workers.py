"""What several workers give: samples/s, and the memory of each.

Workers are processes of one thread each on this machine, which talk through gloo. They train the bottom half of the
paper's network on their shares of the same batches, from random gradients of the cut: what a feature party computes and
exchanges among its workers, without the other party and the network between them. At the end they save a checkpoint.
"CPU µs" is what a worker computes for each of its samples, which other work on the machine disturbs least. Memory is
what a worker takes at its peak beyond what PyTorch and the loops take; "steps" is that before the checkpoint.
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
from typing import Any

import torch

from tpsl.models.halves import Bottom, Bottoms
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.run.checkpoint import save_checkpoint
from tpsl.workers import Workers

FIELDS, NUMBERS = 26, 13
SMALLEST = 4
"""Rows of the smallest vocabulary."""
WARM_UP = 2
MEBIBYTE = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers to compare")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the embedding table")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8192, help="records of a step, of all workers together")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--optimizer", choices=["sgd", "adam", "adagrad"], default="adagrad")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task is not None:
        print(json.dumps(work(**json.loads(options.task))))
        return
    task = {key: getattr(options, key) for key in ("rows", "dim", "batch", "steps", "optimizer")}
    found = {str(count): together(count, task) for count in options.workers}
    if options.json:
        print(json.dumps(found))
        return
    first = next(iter(found.values()))
    print(f"{'workers':14}" + "".join(f"{key:>12} {'times':>5}" for key in first))
    for name, seen in found.items():
        columns = (f"{seen[key]:12,.1f} {seen[key] / first[key]:5.2f}" for key in first)
        print(f"{name:14}" + "".join(columns))


def together(count: int, task: dict[str, Any]) -> dict[str, float]:
    """Return what workers have measured: samples/s of all, and the memory of the one that takes most."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--task", json.dumps({**task, "folder": folder})]
        environments = [os.environ | place | {"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(count)]
        started = [subprocess.Popen(command, env=each, stdout=subprocess.PIPE) for each in environments]
        printed = [process.communicate()[0] for process in started]
        if any(process.returncode for process in started):
            raise SystemExit("a worker has failed")
    seen = [json.loads(text) for text in printed]
    return {key: max(each[key] for each in seen) for key in seen[0]} | {"samples/s": seen[0]["samples/s"]}


def work(rows: int, dim: int, batch: int, steps: int, optimizer: str, *, folder: str) -> dict[str, float]:
    """Train and save as one worker."""
    torch.set_num_threads(1)
    workers = Workers.of_this_process()
    share = batch // workers.count
    step = party(1000, dim, optimizer, workers)[1]
    step(0, share)  # loads and compiles whatever it needs
    before = memory("VmRSS")
    halves, step = party(rows, dim, optimizer, workers)
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            workers.barrier()
            begun, computed = time.perf_counter(), time.process_time()
        step(number, share)
    workers.barrier()
    seconds, computed, in_steps = time.perf_counter() - begun, time.process_time() - computed, memory("VmHWM")
    begun = time.perf_counter()
    save_checkpoint(Path(folder), steps, "benchmark", halves, workers)
    workers.barrier()
    return {
        "samples/s": steps * share * workers.count / seconds,
        "CPU µs": 1e6 * computed / (steps * share),
        "MiB, steps": (in_steps - before) / MEBIBYTE,
        "MiB, all": (memory("VmHWM") - before) / MEBIBYTE,
        "save, s": time.perf_counter() - begun,
    }


def party(rows: int, dim: int, optimizer: str, workers: Workers) -> tuple[Any, Any]:
    """Return a bottom half with its optimiser, and what takes a step with it."""
    config = ModelConfig(embedding_dim=dim, embedding_updates="lazy")
    generator = torch.Generator().manual_seed(0)
    half = Bottoms([Bottom(rows, FIELDS, NUMBERS, config, generator)], config.bottom[-1])
    sizes = vocabularies(rows)
    starts = sizes.cumsum(0) - sizes
    updates = HalfOptimizer(half, OptimizerConfig(name=optimizer, learning_rate=0.01), workers=workers)

    def step(number: int, share: int) -> None:
        drawn = torch.Generator().manual_seed(number * workers.count + workers.rank)
        categorical = (starts + torch.rand(share, FIELDS, generator=drawn, dtype=torch.float64) * sizes).int()
        cut = half(categorical, torch.randn(share, NUMBERS, generator=drawn))
        cut.backward(torch.randn(cut.shape, generator=drawn) / (share * workers.count))
        updates.step()

    return {"bottom": (half, updates)}, step


def vocabularies(rows: int) -> torch.Tensor:
    """Return how many rows of the table each field has: they grow geometrically, and are `rows` together."""
    low, high = 1.0, float(rows)
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if (middle ** torch.arange(FIELDS)).sum() < rows / SMALLEST else (low, middle)
    return SMALLEST * low ** torch.arange(FIELDS, dtype=torch.float64)


def memory(key: str) -> int:
    """Return the bytes that this process has in memory now (VmRSS), or had at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    main()
