"""Training with products in bfloat16: near to float32, resumed to the bit, and float32 in all that lasts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tpsl.data.dataset import Dataset, load
from tpsl.model.trained import TrainedModel
from tpsl.models.halves import compute_in
from tpsl.models.model_config import Precision
from tpsl.run.job import Job, make_job
from tpsl.run.observer import UNWATCHED, Watching
from tpsl.run.one_process import train
from tpsl.run.own_parts import OwnParts
from tpsl.run.vaults import VaultChoice
from tpsl.vault import ReleasePolicy

HALVES = "feature/bottom.safetensors", "label/top.safetensors"


@pytest.fixture
def in_bf16() -> Iterator[None]:
    compute_in("bf16")
    yield
    compute_in("float32")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load(job("sgd", "lazy").data)


def job(optimizer: str, updates: str) -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 1500, "numeric_fields": 3, "categorical_fields": 4, "signal": 3.0},
        "privacy": {"mechanism": "discrete", "epsilon": 4.0, "noise_seed": 1},
        "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8], "embedding_updates": updates},
        "training": {"batch_size": 64, "epochs": 3, "checkpoint_every": 7, "patience": 0},
    }
    names = {"feature_optimizer": {"name": optimizer}, "label_optimizer": {"name": optimizer}}
    return make_job({**content, "training": {**content["training"], **names}}, {}, "test")


class Stop(Exception):
    pass


def stop(done: int, total: int, note: str) -> None:
    if done == 30 and note.startswith("epoch"):
        raise Stop


@pytest.mark.parametrize("optimizer, updates", [("sgd", "lazy"), ("adam", "lazy"), ("adagrad", "dense")])
def test_a_run_in_bfloat16_is_resumed_to_the_bit_and_near_to_float32(
    tmp_path: Path, data: Dataset, in_bf16: None, optimizer: str, updates: str
) -> None:
    agreed, vault = job(optimizer, updates), VaultChoice(tmp_path / "vault", ReleasePolicy(not_private=True))

    def trained_in(run: str, precision: Precision = "bf16", watching: Watching = UNWATCHED) -> list[dict[str, Tensor]]:
        compute_in(precision)
        train(agreed, tmp_path / run, vault=vault, data=data, watching=watching)
        return [load_file(tmp_path / run / half) for half in HALVES]

    whole, exact = trained_in("whole"), trained_in("exact", "float32")
    with pytest.raises(Stop):
        trained_in("broken", watching=Watching(progress=stop))
    for rounded, resumed, plain in zip(whole, trained_in("broken"), exact, strict=True):
        assert {weight.dtype for weight in rounded.values()} == {torch.float32}
        assert all(torch.equal(weight, resumed[name]) for name, weight in rounded.items())
        ours, theirs = (torch.cat([weight.flatten() for weight in half.values()]) for half in (rounded, plain))
        assert 0 < (ours - theirs).norm() <= 0.05 * theirs.norm()
    one, other = (TrainedModel.open(tmp_path / run).predict_rows(data) for run in ("whole", "exact"))
    np.testing.assert_allclose(one, other, atol=0.02)


def test_what_leaves_halves_of_a_users_own_is_float32(tmp_path: Path, data: Dataset, in_bf16: None) -> None:
    seen: list[tuple[torch.dtype, ...]] = []

    class Half(nn.Linear):
        """Between its layers there is bfloat16."""

        def forward(self, *inputs: Tensor) -> Tensor:
            output = super().forward(inputs[-1])
            seen.append((inputs[-1].dtype, output.dtype))
            return output

    own = {
        "feature": OwnParts(bottom=lambda width, inputs: Half(inputs.numeric.shape[1], width)),
        "label": OwnParts(top=lambda cut, classes: Half(cut, 1)),
    }
    train(job("sgd", "dense"), tmp_path / "run", data=data, own=own)
    assert set(seen) == {(torch.float32, torch.bfloat16)}
    for half in HALVES:
        assert {weight.dtype for weight in load_file(tmp_path / "run" / half).values()} == {torch.float32}
