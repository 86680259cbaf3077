"""One Ray cluster on this machine for all tests of the room; without Ray they are skipped."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import SMALL_JOB, programs, small_job, tpsl

__all__ = ["SMALL_JOB", "programs", "small_job", "tpsl"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of four CPUs, found by this process and by those that it starts."""
    ray = pytest.importorskip("ray")
    root = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory(prefix="r") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TRAIN_V2_ENABLED", "1")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
        options: dict[str, Any] = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False}
        found = ray.init("local", num_cpus=4, _temp_dir=folder, **options)
        patch.setenv("RAY_ADDRESS", found.address_info["gcs_address"])
        yield ray
        ray.shutdown()
