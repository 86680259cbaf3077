"""A search on a GPU: its runs share one copy of the inputs there, and each has the weights that it has by itself.

Needs a CUDA device; without one these tests are skipped.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from tpsl.data.dataset import load
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import VaultChoice
from tpsl.select import search
from tpsl.select.space import configuration
from tpsl.split import batches

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device to search on")

DEVICE = torch.device("cuda")
SPACE = [configuration(1e-3), configuration(1e-2, averaging=0.9), configuration(1e-2, weight_decay=1e-4)]


@pytest.mark.parametrize("updates", ["dense", "lazy"])
def test_each_run_of_a_search_has_the_weights_that_it_has_by_itself(
    tmp_path: Path, updates: str, capfd: pytest.CaptureFixture[str]
) -> None:
    content: dict[str, Any] = {
        "data": {"source": "synthetic", "rows": 2000, "numeric_fields": 3, "categorical_fields": 3, "signal": 3.0},
        "privacy": {"epsilon": 2.0},
        "model": {"embedding_dim": 4, "bottom": [16], "top": [8], "embedding_updates": updates},
        "training": {"batch_size": 64, "epochs": 2, "validation": 0.2},
    }
    job = make_job(content, {}, "test")
    gc.collect()  # else inputs of earlier tests go in the middle of this one
    data, before = load(job.data), set(batches._resident)
    searched = search.tune(RunSetup(job, RunFolder(tmp_path / "out"), device=DEVICE), SPACE, data=data)
    assert len(searched.candidates) == 6 and not searched.diverged
    assert len(set(batches._resident) - before) == 2, "each run has copied the inputs to the device"
    for number, run in enumerate(sorted((tmp_path / "out" / "runs").iterdir())):
        alone = tmp_path / f"alone {number}"
        vault = VaultChoice(tmp_path / "out" / "vault", scratch=True)
        train(RunFolder(run).job(), alone, vault=vault, data=data, device=DEVICE)
        for file in ("feature/bottom.safetensors", "label/top.safetensors"):
            assert (alone / file).read_bytes() == (run / file).read_bytes()
    assert "capturing" not in capfd.readouterr().err, "a graph was freed while another one was captured"
