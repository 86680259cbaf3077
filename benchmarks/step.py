"""What privacy and the split cost: the time of one step, side by side in one run.

Three networks of the same shape take turns on the same batches: unsplit (one autograd graph, the baseline), split
without noise, split with noise. Reported is the median over rounds of the ratio to the baseline of the same round,
because the machine's speed drifts more between rounds than within one. Times are CPU seconds (on one thread, unless
told otherwise), which other work on the machine disturbs least.
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
from torch.nn import functional

from tpsl.data.features import Features
from tpsl.mechanisms import Estimator, Mechanism, identity, laplace, randomized_response
from tpsl.models.config import ModelConfig, OptimizerConfig
from tpsl.models.halves import Bottom, Top
from tpsl.models.members import Bottoms, Tops
from tpsl.models.optimizer import HalfOptimizer
from tpsl.party.batches import Batches
from tpsl.party.feature_party import FeatureParty
from tpsl.party.label_party import LabelParty
from tpsl.perturb import LogitGradient
from tpsl.vault import Vault

Step = Callable[[int], None]


def features(records: int, fields: int, numbers: int, rows: int) -> Features:
    rng = np.random.default_rng(0)
    return Features(
        rng.integers(0, rows, (records, fields), dtype=np.int32),
        rng.normal(size=(records, numbers)).astype(np.float32),
        rows,
        tuple(f"c{i}" for i in range(fields)),
        tuple(f"n{i}" for i in range(numbers)),
    )


def halves(held: Features, config: ModelConfig) -> tuple[Bottom, Top]:
    generator = torch.Generator().manual_seed(0)
    bottom = Bottom(held.embedding_rows, held.categorical.shape[1], held.numeric.shape[1], config, generator)
    return bottom, Top(bottom.width, 2, config, generator)


def unsplit_step(held: Features, config: ModelConfig, optimizer: OptimizerConfig, batch: int) -> Step:
    f, h = halves(held, config)
    inputs, updates = Batches(held), [HalfOptimizer(f, optimizer), HalfOptimizer(h, optimizer)]
    labels = torch.from_numpy((np.arange(len(held)) % 4 == 0).astype(np.float32))

    def step(number: int) -> None:
        rows = batch_rows(number, batch, len(held))
        z = h(f(*inputs.batch(rows)))
        loss = functional.binary_cross_entropy_with_logits(z, labels[torch.from_numpy(rows)])
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
    f, h = halves(held, config)
    ids = np.arange(len(held))
    with tempfile.TemporaryDirectory() as folder:
        labels = (ids % 4 == 0).astype(np.int64)
        with Vault.create(Path(folder) / "vault", batches=[(ids, labels, None)]) as vault:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--fields", type=int, default=26)
    parser.add_argument("--numbers", type=int, default=13)
    parser.add_argument("--embedding-rows", type=int, default=1_000_000)
    parser.add_argument("--optimizer", choices=["sgd", "adam", "adagrad"], default="sgd")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    held = features(8 * options.batch, options.fields, options.numbers, options.embedding_rows)
    config, optimizer = ModelConfig(), OptimizerConfig(name=options.optimizer, learning_rate=0.01)
    shared = (held, config, optimizer, options.batch)
    steps = {
        "unsplit": unsplit_step(*shared),
        "split, no noise": split_step(*shared, identity(), "linear"),
        "split, Laplace linear": split_step(*shared, laplace(1.0), "linear"),
        "split, Discrete posterior": split_step(*shared, randomized_response(1.0), "posterior"),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_number in range(-3, options.rounds):
        for name, step in steps.items():
            before = time.process_time()
            step(round_number + 3)
            if round_number >= 0:
                times[name].append(time.process_time() - before)

    def ratio(name: str, baseline: str) -> float:
        return median(a / b for a, b in zip(times[name], times[baseline], strict=True))

    result = {
        "batch": options.batch,
        "milliseconds": {name: round(1000 * median(values), 2) for name, values in times.items()},
        "split / unsplit": round(ratio("split, no noise", "unsplit"), 3),
        "Laplace / no noise": round(ratio("split, Laplace linear", "split, no noise"), 3),
        "Discrete posterior / no noise": round(ratio("split, Discrete posterior", "split, no noise"), 3),
    }
    if options.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
