"""How fast `tpsl train --set local.device=cuda` trains, and what the device could do.

The speed is the one that the command states: that of the steps, with privacy. The floor is what a step has to do, each
tensor written once and read once for each use, at the rate at which the device copies memory; and its products at the
rate of a large one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch

COMMAND = [sys.executable, "-c", "from tpsl.cli.main import main; main()", "train", "--json"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="Records.")
    parser.add_argument("--fields", type=int, default=39)
    parser.add_argument("--numbers", type=int, default=0)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=3_000_000, help="The largest; 39 fields have 10 M rows then.")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--optimizer", choices=["sgd", "adagrad", "adam"], default="sgd")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], default="tf32")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 128])
    parser.add_argument("--own-half", choices=["bottom", "compiled"], help="The half of own_half.py, not the paper's.")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: it needs a GPU, and PyTorch sees none here")
        return
    settings = {
        "data.source": "synthetic",
        "data.rows": options.rows,
        "data.categorical_fields": options.fields,
        "data.numeric_fields": options.numbers,
        "data.largest_vocabulary": options.vocabulary,
        "data.test_fraction": 0.01,
        "method": "network",
        "privacy.mechanism": "laplace",
        "privacy.epsilon": 1.0,
        "model.embedding_dim": options.dim,
        "model.embedding_updates": "lazy",
        "model.bottom": options.widths,
        "model.top": options.widths,
        "training.batch_size": options.batch,
        "training.epochs": options.epochs,
        "training.validation": 0.0,
        "training.patience": 0,
        "training.checkpoint_every": 10**9,
        "training.feature_optimizer.name": options.optimizer,
        "training.label_optimizer.name": options.optimizer,
        "local.device": "cuda",
        "local.precision": options.precision,
    }
    with tempfile.TemporaryDirectory() as folder:
        changes = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
        parties: list[str | Path] = []
        if options.own_half:
            (Path(folder) / "feature.yaml").write_text(f"party: feature\nbottom: own_half:{options.own_half}\n")
            parties = ["--local", Path(folder) / "feature.yaml"]
        begun = time.perf_counter()
        done = subprocess.run(
            [*COMMAND, "--out", Path(folder) / "run", *parties, *changes],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(done.stderr)
    result = json.loads(done.stdout)
    speed, records = result["samples_per_second"], result["train_records"]
    step = options.batch / speed
    floor = floor_seconds(options)
    print(f"{speed / 1e6:.1f} M samples/s, {1e6 * step:.0f} µs a step, {records / speed:.2f} s an epoch of {records:,}")
    print(f"floor: {1e6 * floor:.0f} µs a step, so this is {floor / step:.0%} of what the device could do")
    print(f"test AUC {result['test_auc']:.4f}; {seconds:.0f} s in all, with data, vault and checkpoints")


def floor_seconds(options: argparse.Namespace) -> float:
    """Return the least time of a step from its bytes and operations, whichever takes longer."""
    n, inputs = options.batch, options.fields * options.dim + options.numbers
    widths = [inputs, *options.widths, *options.widths]
    # Inputs: looked up, written, read forwards and for the gradient of the weights; their gradient: written and read.
    numbers = 6 * n * inputs + sum(6 * n * width for width in widths[1:])
    operations = sum(6 * n * below * above for below, above in pairwise(widths))
    bytes_each = 2 if options.precision == "bf16" else 4
    return float(max(bytes_each * numbers / copied_per_second(), operations / products_per_second(options.precision)))


def copied_per_second() -> float:
    """Return how many bytes the device reads and writes in a second, in a large copy."""
    source, target = (torch.empty(2**28, device="cuda") for _ in range(2))
    return 2 * 4 * 2**28 / _seconds(lambda: target.copy_(source))


def products_per_second(precision: str) -> float:
    """Return how many operations the device does in a second, in a large product of random matrices."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
    return 2 * 8192**3 / _seconds(lambda: left @ right)


def _seconds(act: Callable[[], object]) -> float:
    for _ in range(3):
        act()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(10):
        act()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / 10


if __name__ == "__main__":
    main()
