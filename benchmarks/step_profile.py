"""Where a step goes on a CPU, and the floor: what its operations and bytes would take at the machine's own best rates.

Each part of the paper's step (batch of 8192, 26 categories, 13 numbers, a table of a million rows, SGD, Laplace noise,
both halves in one process) is repeated alone, in one thread, and its least CPU time is reported: what other work on the
machine does not change. The floor of a part is its operations at the rate of a large matrix product, or its bytes at
the rate of a large copy, both measured in the same run. Bytes are those that no cache holds: the rows of the table, and
what is as wide as all look-ups; the floor of other parts is 0. What the whole step takes beyond its parts is autograd,
Python, and memory that a part alone finds in a cache.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from step import RATE, batch_rows, features, split_step
from tpsl.kernels.rows import gather, loops
from tpsl.mechanisms import laplace
from tpsl.models.halves import CACHE_LINE
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.perturb import BinaryCrossEntropy
from tpsl.split.batches import Batches

FIELDS, NUMBERS, DIM, WIDTH = 26, 13, 16, 128
HIDDEN = 4
"""Layers with a ReLU behind them."""
FLOAT = 4


@dataclass(frozen=True)
class Part:
    """Something that a step does: its operations (multiply-adds count twice) and the bytes that it reads and writes."""

    name: str
    work: Callable[[], object]
    operations: float = 0.0
    bytes: float = 0.0


def least_seconds(work: Callable[[], object], rounds: int) -> float:
    work()
    found = []
    for _ in range(rounds):
        before = time.thread_time()
        work()
        found.append(time.thread_time() - before)
    return min(found)


def products(batch: int, inputs: int, outputs: int) -> tuple[Callable[[], object], float]:
    """Return the three products of a linear layer, with its bias, and their operations."""
    x, w, b, g = (torch.randn(*shape) for shape in ((batch, inputs), (outputs, inputs), (outputs,), (batch, outputs)))
    return lambda: (functional.linear(x, w, b), g @ w, g.T @ x), 6.0 * batch * inputs * outputs


def parts(batch: int, rows: int) -> list[Part]:
    held = features(8 * batch, FIELDS, NUMBERS, rows)
    batches, chosen = Batches(held), batch_rows(1, batch, len(held))
    categorical, _ = batches.batch(chosen)
    inputs = -(-(FIELDS * DIM + NUMBERS) // CACHE_LINE) * CACHE_LINE
    table, joined, cut = torch.randn(rows, DIM), torch.zeros(batch, inputs), torch.randn(batch, WIDTH)
    weights = [torch.randn(WIDTH, inputs), *(torch.randn(WIDTH, WIDTH) for _ in range(HIDDEN - 1))]
    update = loops("cpu").RowUpdate("sgd", table, {"lr": RATE}, {})
    looked_up = FLOAT * batch * FIELDS * DIM
    first, first_operations = products(batch, inputs, WIDTH)
    others, other_operations = products(batch, WIDTH, WIDTH)
    output, output_operations = products(batch, WIDTH, 1)

    def relus_and_biases() -> None:
        for _ in range(HIDDEN):
            functional.relu_(cut)
            torch.ops.aten.threshold_backward(cut, cut, 0).sum(dim=0)

    logit, evidence, loss = torch.randn(batch), torch.rand(batch), BinaryCrossEntropy()
    return [
        Part("products of the first layer", first, first_operations),
        Part(
            f"products of {HIDDEN - 1} layers {WIDTH} × {WIDTH}",
            lambda: [others() for _ in range(HIDDEN - 1)],
            (HIDDEN - 1) * other_operations,
        ),
        Part("products of the output", output, output_operations),
        Part("look-up of the embeddings", lambda: gather(table, categorical, joined), bytes=2 * looked_up),
        Part("update of the embeddings", lambda: update.apply(categorical, joined), bytes=3 * looked_up),
        Part("ReLU forward and backward, gradients of biases", relus_and_biases),
        Part("the batch of inputs", lambda: batches.batch(chosen)),
        Part("perturbation", lambda: loss.weighted(logit, evidence)),
        Part("messages between the parties", lambda: (cut.clone(), cut.clone() / batch)),
        Part("update of the dense layers", lambda: [w.add_(w, alpha=-RATE) for w in weights]),
    ]


def best_rates(rounds: int) -> tuple[float, float]:
    """Return operations and bytes a second: of a large matrix product, and of a copy that no cache holds."""
    a, b, big, other = torch.randn(1024, 1024), torch.randn(1024, 1024), torch.ones(1 << 25), torch.ones(1 << 25)
    product, copy = least_seconds(lambda: a @ b, rounds), least_seconds(lambda: other.copy_(big), rounds)
    return 2.0 * 1024**3 / product, 2 * big.nbytes / copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--embedding-rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    operations, bandwidth = best_rates(options.rounds)
    held = features(8 * options.batch, FIELDS, NUMBERS, options.embedding_rows)
    settings = ModelConfig(embedding_updates="lazy"), OptimizerConfig(name="sgd", learning_rate=RATE)
    step = split_step(held, *settings, options.batch, laplace(1.0), "linear")
    whole = least_seconds(lambda: step(1), options.rounds)
    rows = []
    for part in parts(options.batch, options.embedding_rows):
        floor = max(part.operations / operations, part.bytes / bandwidth)
        rows.append((part.name, least_seconds(part.work, options.rounds), part.operations, part.bytes, floor))
    alone, floor = sum(row[1] for row in rows), sum(row[4] for row in rows)
    rows.append(("autograd, Python, cold caches", whole - alone, 0.0, 0.0, 0.0))
    rows.append(("a step", whole, sum(row[2] for row in rows), sum(row[3] for row in rows), floor))
    if options.json:
        print(json.dumps({name: [seconds, floor] for name, seconds, _, _, floor in rows}))
        return
    print(f"one thread: {operations / 1e9:.0f} GFLOP/s in a product, {bandwidth / 1e9:.1f} GB/s in a copy\n")
    print("| part | ms | of the step | GFLOP | MB | floor, ms |\n|---|---:|---:|---:|---:|---:|")
    for name, seconds, work, moved, floor in rows:
        share = f"{100 * seconds / whole:.1f} %"
        print(f"| {name} | {1e3 * seconds:.2f} | {share} | {work / 1e9:.2f} | {moved / 1e6:.1f} | {1e3 * floor:.2f} |")


if __name__ == "__main__":
    main()
