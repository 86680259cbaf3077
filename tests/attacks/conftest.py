"""Recorded runs to attack, each trained once for all tests."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tpsl.attacks import AttackResult
from tpsl.data.dataset import Dataset, load
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import train
from tpsl.run.transcript import Trajectory, Transcript

SYNTHETIC = {"source": "synthetic", "rows": 7500, "numeric_fields": 3, "categorical_fields": 4, "signal": 2.0}
NATURAL = {"source": "flights", "layout": "natural", "rows": 3000}
SMALL = {"embedding_dim": 4, "bottom": [16], "top": [16]}

SIGMAS = 4.9  # α = 1e-6


def deviation(result: AttackResult) -> float:
    return (result.auc_high - result.auc_low) / (2 * 1.96)


@dataclass(frozen=True)
class Recorded:
    path: Path
    job: Job
    data: Dataset

    @property
    def transcript(self) -> Transcript:
        return Transcript(self.path / "feature" / "transcript")

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(self.path / "label")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Recorded]:
    """Train a job with seeded noise and record all of it; the same request gets the same run."""
    runs: dict[str, Recorded] = {}

    def run(
        privacy: dict[str, Any],
        *,
        data: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        **training: Any,
    ) -> Recorded:
        noise = {} if privacy["mechanism"] == "none" else {"noise_seed": 7}
        content = {
            "data": data if data and "source" in data else {**SYNTHETIC, **(data or {})},
            "privacy": {**privacy, **noise},
            "model": model or SMALL,
            "training": {"batch_size": 500, "epochs": 1, "patience": 0, **training},
        }
        job = make_job(content, {}, "test")
        if job.digest() not in runs:
            folder = tmp_path_factory.mktemp("run")
            loaded = load(job.data)
            train(job, folder / "run", record_steps=10**9, data=loaded)
            runs[job.digest()] = Recorded(folder / "run", job, loaded)
        return runs[job.digest()]

    return run
