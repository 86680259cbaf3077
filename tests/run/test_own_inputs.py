"""A job on records that its parties bring themselves, each with a half of its own: images here, sequences there."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tpsl.attacks import run_attacks
from tpsl.audit import examine
from tpsl.data.true_labels import reveal
from tpsl.model.trained import TrainedModel
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import ALL_STEPS, load_records, train
from tpsl.run.own_parts import OwnParts
from tpsl.run.run_folder import RunFolder

RECORDS, CLASSES = 600, 3
TRUE = np.random.default_rng(1).integers(0, CLASSES, RECORDS)


class Images:
    """Three by four pixels; the row that belongs to the class is brighter."""

    def __init__(self) -> None:
        self.ids = list(range(RECORDS))
        self._images = np.random.default_rng(0).normal(size=(RECORDS, 1, 3, 4)).astype(np.float32)
        self._images[np.arange(RECORDS), 0, TRUE] += 1.0

    def batch(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(self._images)[rows]


class Words(torch.utils.data.Dataset):
    """Sequences of six words; number 7 stands in some of class 1."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self.ids = list(range(RECORDS))[::-1]
        self._words = rng.integers(0, 7, (RECORDS, 6))
        self._words[(TRUE == 1) & (rng.random(RECORDS) < 0.7), 2] = 7

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, row: int) -> Tensor:
        return torch.tensor(self._words[self.ids[row]])


class Answers(Words):
    """The labels, under the same ids in another order, and words of the label party's own."""

    def __init__(self) -> None:
        super().__init__()
        self.labels = TRUE[::-1].tolist()


def convolution(width: int, inputs: Any) -> nn.Module:
    assert len(inputs) == RECORDS
    return nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(24, width))


class Mean(nn.Module):
    """The mean of the words' embeddings."""

    def __init__(self, width: int, inputs: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(8, width)

    def forward(self, words: Tensor) -> Tensor:
        return self.table(words).mean(dim=1)


def linear(cut: int, classes: int) -> nn.Module:
    return nn.Linear(cut, classes)


sys.modules["test_own_inputs"] = sys.modules[__name__]  # where factories are looked for
OWN = {
    "camera": OwnParts.model_validate({"inputs": "test_own_inputs:Images", "bottom": "test_own_inputs:convolution"}),
    "label": OwnParts.model_validate(
        {"inputs": "test_own_inputs:Answers", "bottom": "test_own_inputs:Mean", "top": "test_own_inputs:linear"}
    ),
}


def job(**data: Any) -> Job:
    content = {
        "data": {"source": "own", "parties": ["camera"], "classes": CLASSES, **data},
        "privacy": {"mechanism": "discrete", "epsilon": 3.0, "noise_seed": 1},
        "model": {"cut": {"camera": 5, "label": 4}},
        "training": {"epochs": 4, "batch_size": 64, "head": "local", "patience": 0},
    }
    return make_job(content, {}, "test")


@pytest.fixture(scope="module", params=[False, True], ids=["labels alone", "features at the label party"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    agreed, run = job(label_features=request.param), tmp_path_factory.mktemp("own") / "run"
    train(agreed, run, own=OWN, record_steps=ALL_STEPS)
    return agreed, run


def test_predictions_are_those_of_the_run_and_better_than_chance(trained: tuple[Job, Path]) -> None:
    agreed, run = trained
    data = load_records(agreed, OWN)
    assert (reveal(data.labels) == TRUE[[int(text) for text in data.ids.to_pylist()]]).all()
    found = TrainedModel.open(run).predict_rows(data, data.test)
    assert np.array_equal(found, RunFolder(run).predictions(4)["test"])
    result = RunFolder(run).result()
    assert result is not None and result.test_auc > 0.6


def test_attacks_read_own_inputs(trained: tuple[Job, Path]) -> None:
    agreed, run = trained
    data = load_records(agreed, OWN)
    report = run_attacks(run, data.labels)
    if agreed.data.label_features:  # type: ignore[union-attr]
        assert "noisy_label_with_features" in report.not_run
        return
    with_features, alone = report["noisy_label_with_features"], report["no_transcript"]
    assert 0.5 < alone.auc < with_features.auc <= 1.0
    assert "completion" in {found.name for found in report.attacks} | set(report.not_run)


def test_an_audit_finds_nothing_in_sound_parts(tmp_path: Path) -> None:
    agreed = job(label_features=True)
    found = examine(agreed, tmp_path / "audit", own=OWN, only=("canaries", "replay"), canaries=200)
    assert found.passed, found.accusations
    assert found.replay is not None and found.replay.flipped > 200


class Telling(Answers):
    """A source that derives its inputs from its labels."""

    def __getitem__(self, row: int) -> Tensor:
        return super().__getitem__(row) * 0 + self.labels[row]


def test_an_audit_finds_inputs_that_are_made_from_labels(tmp_path: Path) -> None:
    own = {**OWN, "label": OwnParts(inputs=Telling, bottom=Mean, top=linear)}
    found = examine(job(label_features=True), tmp_path / "audit", own=own, only=("replay",))
    assert "true labels leak" in found.accusations[0]
