"""A run with halves, an optimiser and a loss that users wrote: resumed to the same bits, used again from its notes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tpsl.attacks import run_attacks
from tpsl.data.dataset import Dataset, load
from tpsl.data.true_labels import reveal
from tpsl.model.trained import TrainedModel
from tpsl.perturb import LOSSES, Loss, cross_entropy
from tpsl.registry import ExtensionError
from tpsl.run.evaluation import evaluate
from tpsl.run.job import Job, make_job
from tpsl.run.observer import Watching
from tpsl.run.one_process import train
from tpsl.run.own_parts import OwnParts
from tpsl.run.vaults import VaultChoice
from tpsl.vault import NO_LIMITS

NETWORKS = """
import torch
from torch import nn

class Half(nn.Module):
    def __init__(self, width, inputs, hidden):
        super().__init__()
        self.table = nn.Embedding(inputs.embedding_rows, 3)
        columns = 3 * len(inputs.categorical_fields) + len(inputs.numeric_fields)
        first, last = nn.Linear(columns, hidden), nn.Linear(hidden, width)
        self.layers = nn.Sequential(first, nn.BatchNorm1d(hidden), nn.GELU(), last)

    def forward(self, categories, numbers):
        return self.layers(torch.cat([self.table(categories).flatten(1), numbers], dim=1))

def top(cut, classes):
    return nn.Sequential(nn.Linear(cut, 8), nn.Tanh(), nn.Linear(8, 1))
"""
OWN = {
    "feature": OwnParts.model_validate(
        {"bottom": {"factory": "networks_of_own_runs:Half", "arguments": {"hidden": 12}}}
    ),
    "label": OwnParts.model_validate({"top": "networks_of_own_runs:top"}),
}


class Smoothed(Loss):
    """Cross-entropy against labels that are a little uncertain."""

    def __init__(self, classes: int, share: float) -> None:
        self.plain, self.share = cross_entropy(classes), share

    def log_probabilities(self, z: torch.Tensor) -> torch.Tensor:
        return self.plain.log_probabilities(z)

    def losses(self, z: torch.Tensor) -> torch.Tensor:
        plain = -self.log_probabilities(z)
        return (1 - self.share) * plain + self.share * plain.mean(dim=1, keepdim=True)


LOSSES.register("smoothed in runs", lambda classes: Smoothed(classes, share=0.1))


def own_job(**training: Any) -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 1500, "numeric_fields": 3, "categorical_fields": 2, "signal": 2.0},
        "privacy": {"mechanism": "discrete", "epsilon": 3.0, "noise_seed": 1},
        "model": {"cut": 6},
        "training": {
            "epochs": 2,
            "patience": 0,
            "batch_size": 100,
            "checkpoint_every": 3,
            "loss": "smoothed in runs",
            "feature_optimizer": {
                "name": "RAdam",
                "learning_rate": 0.03,
                "schedule": {"name": "CosineAnnealingLR", "arguments": {"T_max": 24}},
            },
            "label_optimizer": {"name": "sgd", "learning_rate": 0.3, "arguments": {"momentum": 0.9}},
            **training,
        },
    }
    return make_job(content, {}, "test")


class Stop(Exception):
    pass


def stop_at(step: int) -> Watching:
    def stop(done: int, total: int, note: str) -> None:
        if done == step:
            raise Stop

    return Watching(progress=stop)


@pytest.fixture(autouse=True)
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "networks_of_own_runs.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)


def trained_twice(agreed: Job, folder: Path) -> Dataset:
    """Train a run, and one that is broken off twice, on the same noisy labels."""
    data, vault = load(agreed.data), VaultChoice(folder / "vault", policy=NO_LIMITS)
    train(agreed, folder / "whole", vault=vault, data=data, own=OWN, record_steps=99)
    for step in (4, 14):
        with pytest.raises(Stop):
            train(agreed, folder / "broken", vault=vault, data=data, own=OWN, watching=stop_at(step), record_steps=99)
    train(agreed, folder / "broken", vault=vault, data=data, own=OWN, record_steps=99)
    return data


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_of_own_parts_is_resumed_predicted_with_and_attacked(tmp_path: Path, staleness: int) -> None:
    agreed = own_job(staleness=staleness, averaging=0.9)
    data = trained_twice(agreed, tmp_path)
    for file in ("feature/bottom.safetensors", "label/top.safetensors"):
        whole, broken = load_file(tmp_path / "whole" / file), load_file(tmp_path / "broken" / file)
        assert whole.keys() == broken.keys()
        assert all(torch.equal(whole[name], broken[name]) for name in whole)
    assert load_file(tmp_path / "whole/feature/bottom.safetensors")["members.0.layers.1.num_batches_tracked"] == 24

    result = train(agreed, tmp_path / "whole", own=OWN)
    found = evaluate(
        TrainedModel.open(tmp_path / "whole").predict_rows(data, data.test), reveal(data.labels)[data.test]
    )
    assert (found.test_auc, found.test_log_loss) == (result.test_auc, result.test_log_loss)
    assert found.test_auc > 0.6
    attacks = ["likelihood", "completion"]
    report = run_attacks(tmp_path / "whole", data.labels, which=attacks, features=data.feature_parties)
    attack = report["likelihood"]
    assert attack.closed_form is not None
    assert abs(attack.auc - attack.closed_form) < 5 * (attack.auc_high - attack.auc_low) / (2 * 1.96)


def test_what_was_given_as_an_object_must_be_given_again(tmp_path: Path) -> None:
    agreed, own = own_job(epochs=1), {"label": OwnParts(top=nn.Linear(6, 1))}
    data = load(agreed.data)
    train(agreed, tmp_path / "run", data=data, own=own)
    with pytest.raises(ExtensionError, match="the top half was the Python object Linear when the run began"):
        TrainedModel.open(tmp_path / "run").predict_rows(data)
    halves = TrainedModel.open(tmp_path / "run", own).halves(data.feature_parties)
    assert halves.probabilities(data.feature_parties).shape == (len(data),)


def test_dropout_ends_a_run_at_its_first_step(tmp_path: Path) -> None:
    own = {"label": OwnParts(top=lambda cut, classes: nn.Sequential(nn.Dropout(0.5), nn.Linear(cut, 1)))}
    with pytest.raises(ExtensionError, match=r"^the top half <lambda> draws random numbers from PyTorch's generator"):
        train(own_job(), tmp_path / "run", own=own)
