"""What `tpsl bench` measures: speed, growth, a large network, and the vault."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tpsl.bench.contender import Contender
from tpsl.bench.race import Pace, Standing, race
from tpsl.bench.shape import Device, Shape
from tpsl.mechanisms import laplace
from tpsl.progress import Progress, no_progress
from tpsl.vault import Vault

BASELINE = Contender("unsplit PyTorch", "unsplit", how="nn.Embedding(sparse=True) and torch.optim.SGD, without privacy")
ONE_PROCESS = "tpsl, one process"


@dataclass(frozen=True)
class Size:
    """How much is measured: the shape, and the length of a race."""

    shape: Shape
    pace: Pace
    large: Shape
    """Look-ups as many and as wide as those of MLPerf's DLRM-DCNv2."""
    variants: Sequence[tuple[str, dict[str, Any]]]
    """What grows, in words, and how the shape differs."""
    vault_records: int

    def on(self, device: Device) -> Size:
        """Return the same with networks on a device."""
        return replace(self, shape=replace(self.shape, device=device), large=replace(self.large, device=device))


FULL = Size(
    Shape(),
    Pace(),
    Shape(batch=2048, fields=214, embedding_dim=128, largest_vocabulary=24_000),
    (
        ("a tenth of the rows", {"largest_vocabulary": 20_000}),
        ("10 times the rows", {"largest_vocabulary": 3_000_000}),
        ("cut 32", {"bottom": (128, 32)}),
        ("cut 512", {"bottom": (128, 512)}),
        ("10 fields", {"fields": 10}),
        ("100 fields", {"fields": 100}),
        ("10 classes", {"classes": 10}),
        ("100 classes", {"classes": 100}),
        ("2 feature parties", {"parties": 2}),
        ("4 feature parties", {"parties": 4}),
    ),
    2_000_000,
)
_TINY = Shape(batch=64, fields=4, largest_vocabulary=50, embedding_dim=4, bottom=(8, 8), top=(8,))
QUICK = Size(
    _TINY,
    Pace(rounds=2, most_steps=2, warm_up=1),
    replace(_TINY, fields=8, embedding_dim=8),
    (("2 feature parties", {"parties": 2}),),
    10_000,
)
"""Too small to tell anything: shows that everything runs."""


def one_process(shape: Shape) -> Contender:
    """Return this package with all parties in one process."""
    return Contender(ONE_PROCESS, "tpsl_in_process", shape.job(), how="`tpsl train`, ε = 1")


def own_contenders(shape: Shape) -> list[Contender]:
    """Return the ways in which this package trains a shape."""
    network = "`tpsl label serve` and `tpsl feature join`, ε = 1, mutual TLS on loopback, wire bfloat16"
    hand_over = "the feature party alone after `exchange: labels`, ε = 1"
    return [
        one_process(shape),
        Contender("tpsl, two processes", "tpsl_two_parties", shape.job(wire="bfloat16"), how=network),
        Contender("tpsl, handed over", "tpsl_in_process", shape.job(exchange="labels"), how=hand_over),
    ]


def speed(shape: Shape, pace: Pace, peers: Sequence[Contender], progress: Progress = no_progress) -> list[Standing]:
    """Race plain PyTorch, the ways of this package and peers on one shape."""
    shape = replace(shape, steps=pace.steps)
    return race([BASELINE, *own_contenders(shape), *peers], shape, pace, progress)


def growth(size: Size, progress: Progress = no_progress) -> list[tuple[str, list[Standing]]]:
    """Race plain PyTorch and this package in one process on shapes that differ from the usual one in one thing."""
    shapes = [("the usual shape", size.shape)]
    shapes += [(words, replace(size.shape, **changes)) for words, changes in size.variants]
    found = []
    for number, (words, shape) in enumerate(shapes):
        progress(number, len(shapes), words)
        found.append((words, one_process_race(shape, replace(size.pace, rounds=min(size.pace.rounds, 5)))))
    return found


def one_process_race(shape: Shape, pace: Pace, progress: Progress = no_progress) -> list[Standing]:
    """Race plain PyTorch and this package in one process."""
    shape = replace(shape, steps=pace.steps)
    return race([BASELINE, one_process(shape)], shape, pace, progress)


@dataclass(frozen=True)
class VaultFigure:
    """What the vault takes for one thing."""

    name: str
    seconds: float
    records_per_second: float


def vault(size: Size, progress: Progress = no_progress) -> list[VaultFigure]:
    """Time what the vault does with as many records as in the size."""
    mechanism, ids = laplace(1.0), np.arange(size.vault_records)
    labels = np.random.default_rng(0).integers(0, 2, len(ids))
    with tempfile.TemporaryDirectory(prefix="tpsl-bench-") as folder:
        path = Path(folder) / "vault"
        stages: dict[str, Callable[[], object]] = {
            "create": lambda: Vault.create(path, batches=[(ids, labels, None)]).close(),
            "release": lambda: _with_vault(path, lambda vault: vault.release(mechanism)),
            "look up": lambda: _with_vault(path, lambda vault: vault.noisy_labels(mechanism, ids)),
            "verify": lambda: _with_vault(path, lambda vault: vault.verify()),
        }
        figures = []
        for number, (name, work) in enumerate(stages.items()):
            progress(number, len(stages), f"{name} {len(ids):,} records")
            begun = time.perf_counter()
            work()
            seconds = time.perf_counter() - begun
            figures.append(VaultFigure(name, seconds, len(ids) / seconds))
    return figures


def _with_vault(path: Path, work: Callable[[Vault], object]) -> None:
    with Vault.open(path) as opened:
        work(opened)


def share_of_an_epoch(figure: VaultFigure, standings: Sequence[Standing]) -> float | None:
    """Return the seconds of a figure against those of training in one process on as many records, if that ran."""
    speeds = {standing.name: standing.samples_per_second for standing in standings}
    trained = speeds.get(ONE_PROCESS)
    return None if trained is None else trained / figure.records_per_second
