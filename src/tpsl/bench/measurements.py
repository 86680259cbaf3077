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
from tpsl.training.device_steps import STEPS_AT_ONCE
from tpsl.vault import Vault

BASELINE = Contender("unsplit PyTorch", "unsplit", how="nn.Embedding(sparse=True) and torch.optim.SGD, without privacy")
ONE_PROCESS = Contender("tpsl, one process", "tpsl_in_process", {}, how="`tpsl train`, ε = 1")
_NETWORK = "`tpsl label serve` and `tpsl feature join`, ε = 1, mutual TLS on loopback"
_ALONE = "the feature party alone after `exchange: labels`, ε = 1"
OWN = (
    ONE_PROCESS,
    Contender(
        "tpsl, one process, bf16", "tpsl_in_process", {"precision": "bf16"}, how="`local.precision: bf16`, ε = 1"
    ),
    Contender("tpsl, two processes, bfloat16", "tpsl_two_parties", {"wire": "bfloat16"}, how=_NETWORK),
    Contender("tpsl, two processes, int8", "tpsl_two_parties", {"wire": "int8"}, how=_NETWORK),
    Contender("tpsl, handed over", "tpsl_in_process", {"exchange": "labels"}, how=_ALONE),
)
"""The ways in which this package trains."""


@dataclass(frozen=True)
class Size:
    """How much is measured: the shape, and the length of a race."""

    shape: Shape
    pace: Pace
    small_batches: Shape
    """Batches as small as in peers' own examples (NVFlare's), where the time between steps counts."""
    large: Shape
    """Look-ups as many and as wide as those of MLPerf's DLRM-DCNv2."""
    variants: Sequence[tuple[str, dict[str, Any]]]
    """What grows, in words, and how the shape differs."""
    vault_records: int

    def on(self, device: Device) -> Size:
        """Return the same with networks on a device; a GPU takes as much in a moment as a CPU in a minute.

        It takes the steps of a whole CUDA graph at once, of which every turn is a multiple then.
        """
        shapes = {name: replace(getattr(self, name), device=device) for name in ("shape", "small_batches", "large")}
        more = {"rounds": 5, "most_records": 32 * self.pace.most_records, "warm_up": STEPS_AT_ONCE}
        return replace(self, pace=self.pace if device == "cpu" else replace(self.pace, **more), **shapes)


FULL = Size(
    Shape(),
    Pace(),
    Shape(batch=64),
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
    Pace(rounds=2, most_records=128, warm_up=1),
    replace(_TINY, batch=16),
    replace(_TINY, fields=8, embedding_dim=8),
    (("2 feature parties", {"parties": 2}),),
    10_000,
)
"""Too small to tell anything: shows that everything runs."""


def speed(shape: Shape, pace: Pace, peers: Sequence[Contender], progress: Progress = no_progress) -> list[Standing]:
    """Race plain PyTorch, all ways of this package and peers."""
    return race([BASELINE, *OWN, *peers], shape, pace, progress)


def one_process(shape: Shape, pace: Pace, progress: Progress = no_progress) -> list[Standing]:
    """Race plain PyTorch and this package in one process."""
    return race([BASELINE, ONE_PROCESS], shape, pace, progress)


def growth(size: Size, progress: Progress = no_progress) -> list[tuple[str, list[Standing]]]:
    """Race plain PyTorch and this package in one process on shapes that differ from the usual one in one thing."""
    shapes = [("the usual shape", size.shape)]
    shapes += [(words, replace(size.shape, **changes)) for words, changes in size.variants]
    pace, found = replace(size.pace, rounds=min(size.pace.rounds, 5)), []
    for number, (words, shape) in enumerate(shapes):
        progress(number, len(shapes), words)
        found.append((words, one_process(shape, pace)))
    return found


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
            "create": lambda: Vault.create(path, batches=[(ids, labels, None)], scratch=True).close(),
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
    trained = speeds.get(ONE_PROCESS.name)
    return None if trained is None else trained / figure.records_per_second
