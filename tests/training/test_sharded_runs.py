"""Whole runs whose tables are divided over workers: to the last bit those of workers that have all rows each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tpsl.data.features import Features
from tpsl.models.placement import Placement
from tpsl.training.build import build_feature_party
from tpsl.training.checkpoint import save_checkpoint
from tpsl.training.job import Job, make_job
from tpsl.training.one_process import train_together
from tpsl.training.run_folder import RunFolder
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import VaultChoice
from tpsl.workers import Workers

JOB = {
    "data": {"source": "synthetic", "rows": 600, "numeric_fields": 2, "categorical_fields": 3},
    "privacy": {"mechanism": "randomized_response", "epsilon": 2.0, "noise_seed": 1},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8], "embedding_updates": "lazy", "members": 2, "wide": True},
    "training": {
        **{"batch_size": 100, "epochs": 2, "checkpoint_every": 3, "validation": 0.1, "averaging": 0.5, "patience": 1},
        **{"micro_batches": 2, "staleness": 1, "head": "local"},
    },
}


def trained(workers: Workers, folder: Path, sharded: bool) -> None:
    run = folder / f"{workers.count} {'sharded' if sharded else 'replicated'}"
    setup = RunSetup(make_job(JOB, {}, "test"), RunFolder(run), workers=workers, shards_tables=sharded)
    train_together(setup, VaultChoice(scratch=True))


def all_trained(workers: Workers, folder: Path) -> None:
    torch.set_num_threads(1)
    for sharded in (True, False):
        trained(workers, folder, sharded)


@pytest.fixture(scope="module")
def folder(in_workers: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert in_workers(2, all_trained, folder) == [None, None]
    return folder


def test_all_that_a_run_leaves_is_the_same(folder: Path) -> None:
    patterns = ("*/*.safetensors", "*/checkpoints/*/*.safetensors", "*/best/*/*.safetensors", "label/predictions/*")
    found = {}
    for kind in ("sharded", "replicated"):
        files = [file for pattern in patterns for file in sorted((folder / f"2 {kind}").glob(pattern))]
        found[kind] = {str(file.relative_to(folder / f"2 {kind}")): file.read_bytes() for file in files}
    assert found["sharded"] == found["replicated"]
    assert {"feature/bottom.safetensors", "label/top.safetensors"} <= found["sharded"].keys()


ROWS, DIM = 400_000, 32


def _memory(workers: Workers, folder: Path, sharded: bool) -> float:
    """Return how much memory a worker takes to build a party, train it and save it, in sizes of the table."""
    torch.set_num_threads(1)
    model = {"embedding_dim": DIM, "bottom": [4], "embedding_updates": "lazy"}
    job, place = Job.model_validate({"model": model}), Placement(workers=workers, shards_tables=sharded)
    rows = np.random.default_rng(workers.number).integers(0, 99, (50, 2), dtype=np.int32)
    for embedding_rows in (100, ROWS):  # the first time loads whatever is needed
        Path("/proc/self/clear_refs").write_text("5")  # what was the most so far is forgotten
        before = _resident("VmRSS")
        features = Features(rows, np.zeros((50, 1), np.float32), embedding_rows, ("a", "b"), ("c",))
        party = build_feature_party(job, "feature", features, place=place)
        party.forward(np.arange(50))
        party.backward(torch.ones(50, 4), 50)
        party.update()
        save_checkpoint(folder / str(embedding_rows), 1, "job", {"bottom": (party.bottom, party.optimizer)}, workers)
        workers.wait_for_all()
    return (_resident("VmHWM") - before) / (4 * ROWS * DIM)


def _resident(key: str) -> int:
    """Return the bytes that this process has in memory now (VmRSS), or had at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def test_a_worker_needs_the_memory_of_its_rows(in_workers: Callable[..., Any], tmp_path: Path) -> None:
    (alone,) = in_workers(1, _memory, tmp_path / "alone", False)
    shares = in_workers(4, _memory, tmp_path / "four", True)
    # The table, two moments, and copies of those for the checkpoint.
    assert 4.5 < alone < 5.9
    assert max(shares) < 0.4 * alone
