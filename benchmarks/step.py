"""What privacy and the split cost: the time of one step, side by side in one run.

Networks of the same shape take turns on the same batches: unsplit as a user of PyTorch writes it (one module, sparse
gradients for the table, an optimiser of `torch.optim`: the baseline), split without noise, split with noise. Reported
is the median over rounds of the ratio to the baseline of the same round, because the machine's speed drifts more
between rounds than within one: of wall time, and of CPU seconds, which other work on the machine disturbs least. How
much of a step the perturbation is, is the time of its call in the same process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tpsl.data.features import Features
from tpsl.mechanisms import Estimator, Mechanism, identity, laplace, randomized_response
from tpsl.models.halves import Bottom, Bottoms, Top, Tops, compute_in
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.perturb import LogitGradient
from tpsl.split.feature_party import FeatureParty
from tpsl.split.label_party import LabelParty
from tpsl.vault import Vault

Step = Callable[[int], None]
BASELINE = "plain PyTorch"
RATE = 0.01


def features(records: int, fields: int, numbers: int, rows: int) -> Features:
    rng = np.random.default_rng(0)
    return Features(
        rng.integers(0, rows, (records, fields), dtype=np.int32),
        rng.normal(size=(records, numbers)).astype(np.float32),
        rows,
        tuple(f"c{i}" for i in range(fields)),
        tuple(f"n{i}" for i in range(numbers)),
    )


class PlainNetwork(nn.Module):
    """The paper's network in plain PyTorch."""

    def __init__(self, held: Features, *, sparse: bool) -> None:
        super().__init__()
        fields, numbers = held.categorical.shape[1], held.numeric.shape[1]
        self.embedding = nn.Embedding(held.embedding_rows, 16, sparse=sparse)
        self.layers = nn.Sequential(
            nn.Linear(16 * fields + numbers, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        output: Tensor = self.layers(torch.cat([self.embedding(categorical).flatten(1), numeric], dim=1)).squeeze(1)
        return output


def plain_step(held: Features, optimizer: str, batch: int, *, sparse: bool) -> Step:
    network = PlainNetwork(held, sparse=sparse)
    table, dense = list(network.embedding.parameters()), list(network.layers.parameters())
    updates: list[torch.optim.Optimizer]
    if optimizer == "adam":
        updates = [torch.optim.SparseAdam(table, RATE) if sparse else torch.optim.Adam(table, RATE)]
        updates.append(torch.optim.Adam(dense, RATE))
    else:
        make = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adagrad
        updates = [make([*table, *dense], RATE)]
    categorical, numeric = torch.from_numpy(held.categorical), torch.from_numpy(held.numeric)
    labels = torch.from_numpy((np.arange(len(held)) % 4 == 0).astype(np.float32))

    def step(number: int) -> None:
        rows = torch.from_numpy(batch_rows(number, batch, len(held)))
        for update in updates:
            update.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(network(categorical[rows], numeric[rows]), labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        for update in updates:
            update.step()

    return step


def split_step(
    held: Features,
    config: ModelConfig,
    optimizer: OptimizerConfig,
    batch: int,
    mechanism: Mechanism,
    estimator: Estimator,
) -> Step:
    generator = torch.Generator().manual_seed(0)
    f = Bottom(held.embedding_rows, held.categorical.shape[1], held.numeric.shape[1], config, generator)
    h = Top(f.width, 2, config, generator)
    ids = np.arange(len(held))
    with tempfile.TemporaryDirectory() as folder:
        labels = (ids % 4 == 0).astype(np.int64)
        with Vault.create(Path(folder) / "vault", batches=[(ids, labels, None)], scratch=True) as vault:
            vault.release(mechanism)
            noisy = vault.noisy_labels(mechanism, ids)
    feature = FeatureParty(Bottoms([f], f.width), HalfOptimizer(f, optimizer), held)
    label = LabelParty(Tops([h], 2), HalfOptimizer(h, optimizer), LogitGradient(mechanism, estimator), noisy)

    def step(number: int) -> None:
        rows = batch_rows(number, batch, len(held))
        (gradients,) = label.backward(rows, rows, [feature.forward(rows)], len(rows))
        label.update()
        feature.backward(gradients, len(rows))
        feature.update()

    return step


def batch_rows(number: int, batch: int, records: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    start = number * batch % (records - batch + 1)
    return np.arange(start, start + batch)


def perturbation_seconds(mechanism: Mechanism, estimator: Estimator, batch: int) -> float:
    """Return the CPU time of what noise adds to a step: the logit gradient from the evidence of a batch."""
    gradient, z = LogitGradient(mechanism, estimator), torch.randn(batch)
    evidence = gradient.evidence(np.zeros(batch, np.uint8))
    before = time.process_time()
    for _ in range(200):
        gradient(z, evidence)
    return (time.process_time() - before) / 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--fields", type=int, default=26)
    parser.add_argument("--numbers", type=int, default=13)
    parser.add_argument("--embedding-rows", type=int, default=1_000_000)
    parser.add_argument("--optimizer", choices=["sgd", "adam", "adagrad"], default="sgd")
    parser.add_argument("--updates", choices=["lazy", "dense"], default="lazy")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32", help="Of the split networks.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    compute_in(options.precision)
    held = features(8 * options.batch, options.fields, options.numbers, options.embedding_rows)
    config, optimizer = (
        ModelConfig(embedding_updates=options.updates),
        OptimizerConfig(name=options.optimizer, learning_rate=RATE),
    )
    noise: dict[str, tuple[Mechanism, Estimator]] = {
        "split, no noise": (identity(), "linear"),
        "split, Laplace linear": (laplace(1.0), "linear"),
        "split, Discrete posterior": (randomized_response(1.0), "posterior"),
    }
    steps = {BASELINE: plain_step(held, options.optimizer, options.batch, sparse=options.updates == "lazy")}
    steps |= {name: split_step(held, config, optimizer, options.batch, *each) for name, each in noise.items()}
    wall, cpu = measured(steps, options.rounds)
    result = {
        "batch": options.batch,
        "threads": options.threads,
        "milliseconds": {name: round(1000 * median(values), 2) for name, values in wall.items()},
        "CPU milliseconds": {name: round(1000 * median(values), 2) for name, values in cpu.items()},
        "samples/s of plain PyTorch, times": {name: ratio(wall, BASELINE, name) for name in noise},
        "the same by CPU seconds": {name: ratio(cpu, BASELINE, name) for name in noise},
        "perturbation, % of a step": {
            name: round(100 * perturbation_seconds(*each, options.batch) / median(cpu[name]), 2)
            for name, each in noise.items()
        },
    }
    if options.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key}: {value}")


def measured(steps: dict[str, Step], rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return wall times and CPU times of all rounds; three more, before them, warm up."""
    wall: dict[str, list[float]] = {name: [] for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    for round_number in range(-3, rounds):
        for name, step in steps.items():
            before, cpu_before = time.perf_counter(), time.process_time()
            step(round_number + 3)
            if round_number >= 0:
                wall[name].append(time.perf_counter() - before)
                cpu[name].append(time.process_time() - cpu_before)
    return wall, cpu


def ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    return round(median(a / b for a, b in zip(times[one], times[other], strict=True)), 3)


if __name__ == "__main__":
    main()
