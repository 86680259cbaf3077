"""Jobs small enough to audit in a second."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tpsl.run.job import Job, make_job


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def job() -> Callable[..., Job]:
    """Return a job on synthetic records with seeded noise, so that tests repeat."""

    def build(privacy: dict[str, Any], *, data: dict[str, Any] | None = None, epochs: int = 2, **training: Any) -> Job:
        content = {
            "data": data or {"source": "synthetic", "rows": 5000, "numeric_fields": 3, "categorical_fields": 4},
            "privacy": {"noise_seed": 11, **privacy},
            "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8]},
            "training": {"batch_size": 500, "epochs": epochs, "patience": 0, **training},
        }
        return make_job(content, {}, "test")

    return build
