"""Record and replay passes a label party that sees noisy labels only, and catches one that peeks."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tpsl.audit import AuditError, replay
from tpsl.audit.replay import _first_difference, flip_half
from tpsl.data.dataset import load
from tpsl.data.sides import LabelSide
from tpsl.data.true_labels import reveal
from tpsl.files import for_json
from tpsl.mechanisms import seeded_words
from tpsl.net.asking import Due, Script
from tpsl.net.messages import Message
from tpsl.run.after_training import AfterTraining
from tpsl.run.build import LabelPartyBuilder, build_label_party
from tpsl.run.job import Job, make_job
from tpsl.run.observer import Watching
from tpsl.run.role import FeatureRole, LabelRole
from tpsl.run.stages import hand_over
from tpsl.run.vaults import RunVault
from tpsl.split.label_party import LabelParty
from tpsl.vault import NoisyStatistic

HEALTHY = [
    {"mechanism": "discrete", "epsilon": 1.0, "estimator": "posterior"},
    {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear", "draws": 2},
]


@pytest.mark.parametrize("privacy", HEALTHY, ids=lambda p: p["mechanism"])
def test_a_sound_job_is_identical(job: Callable[..., Job], tmp_path: Path, privacy: dict[str, Any]) -> None:
    seen: list[tuple[int, int]] = []
    agreed = job({**privacy, "noise_seed": None})
    result = replay(
        agreed, tmp_path / "replay", watching=Watching(progress=lambda done, total, note: seen.append((done, total)))
    )
    assert result.passed
    assert result.differences == ()
    assert abs(result.flipped - 2500) < 4.9 * np.sqrt(5000) / 2
    # sizes, rows, embeddings, gradients and their description; the trajectory; two halves; predictions of two epochs
    assert result.files == 10
    assert result.bytes > 2 * 4000 * 8 * 4 * 2
    assert seen == [(step, 32) for step in range(1, 33)]
    assert json.loads(json.dumps(for_json(asdict(result))))["passed"] is True


def test_noisy_labels_that_are_handed_over_are_replayed(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that crosses are the noisy labels; a label party that sends true ones is caught by the message itself."""
    agreed = job({"mechanism": "discrete", "epsilon": 1.0, "noise_seed": None}, epochs=1, exchange="labels")
    sound = replay(agreed, tmp_path / "sound")
    assert sound.passed and sound.frame_bytes < 10_000

    def sends_true_labels(role: LabelRole) -> Script:
        vault: Any = role.vault
        labels = reveal(vault.side.labels)[role.records.train].astype(np.uint8)
        question = yield Due(hand_over.NOISY_LABELS)
        question.answer_all(Message(tensor=torch.from_numpy(np.packbits(labels)[None])))

    monkeypatch.setattr(hand_over, "label", sends_true_labels)
    leaking = replay(agreed, tmp_path / "leaking")
    assert not leaking.passed and leaking.first_message == "label → feature: NoisyLabels 0, part 0"


def test_k_classes_and_own_features(job: Callable[..., Job], tmp_path: Path) -> None:
    agreed = job(
        {"mechanism": "discrete", "epsilon": 1.0},
        data={"source": "flights", "layout": "natural", "task": "delay5", "rows": 1500},
        epochs=1,
    )
    result = replay(agreed, tmp_path / "replay", seed=1)
    assert result.passed
    assert result.files == 10
    assert result.flipped > 500


def learning_from(*true_labels: np.ndarray) -> LabelPartyBuilder:
    """Label parties that send perturbed gradients, as agreed, but update their own half with these true labels."""
    labels = iter(true_labels)

    def build(*arguments: Any) -> LabelParty:
        party = build_label_party(*arguments)
        party._evidence = [party._evidence[0], torch.from_numpy(next(labels).astype(np.float32))]
        return party

    return build


def test_own_weights_updated_with_true_labels_are_caught(job: Callable[..., Job], tmp_path: Path) -> None:
    agreed = job({"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"})
    data = load(agreed.data)
    changed = flip_half(data, seeded_words(2, "replay"))
    broken = learning_from(reveal(data.labels)[data.train], reveal(changed.labels)[data.train])
    result = replay(agreed, tmp_path / "replay", seed=2, data=data, make_label_party=broken)
    assert not result.passed
    differing = {difference.file for difference in result.differences}
    assert {"label/top.safetensors", "label/trajectory.f32", "feature/transcript/gradients.f32"} <= differing
    # The first gradients were sent before anything was learned from true labels: they are the same in both runs.
    first = next(d.first_byte for d in result.differences if d.file == "feature/transcript/gradients.f32")
    assert first >= 500 * 8 * 4


def test_an_early_stop_by_true_test_labels_is_caught(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label party that stops by a metric of the test set tells the other side something about its true labels."""

    epochs: list[int] = []

    def peeking(self: AfterTraining, setup: Any, side: LabelSide, *others: Any, **named: Any) -> None:
        init_after(self, setup, side, *others, **named)
        epochs.append(2 if reveal(side.labels)[side.records.test].sum() % 2 == 0 else 1)

    def label_role(self: LabelRole, *others: Any, **named: Any) -> None:
        init_label(self, *others, **named)
        self.schedule.total_steps = self.schedule.plan.steps(epochs[-1])

    def feature_role(self: FeatureRole, *others: Any, **named: Any) -> None:
        init_feature(self, *others, **named)
        self.schedule.total_steps = self.schedule.plan.steps(epochs[-1])

    init_after, init_label, init_feature = AfterTraining.__init__, LabelRole.__init__, FeatureRole.__init__
    monkeypatch.setattr(AfterTraining, "__init__", peeking)
    monkeypatch.setattr(LabelRole, "__init__", label_role)
    monkeypatch.setattr(FeatureRole, "__init__", feature_role)
    results = [
        replay(job({"mechanism": "discrete", "epsilon": 1.0}), tmp_path / str(seed), seed=seed) for seed in range(4)
    ]
    assert any(not result.passed for result in results)


def test_the_first_difference_of_two_files(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(bytes(5_000_000))
    assert _first_difference(one, other) is None
    other.write_bytes(bytes(5_000_000))
    assert _first_difference(one, other) == -1
    other.write_bytes(bytes(4_500_000) + b"\x01" + bytes(499_999))
    assert _first_difference(one, other) == 4_500_000
    other.write_bytes(bytes(4_999_999))
    assert _first_difference(one, other) == 4_999_999


def test_a_folder_in_use_is_refused(job: Callable[..., Job], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AuditError, match="file: exists already"):
        replay(job({"mechanism": "discrete", "epsilon": 1.0}), tmp_path / "file")


def test_true_labels_in_the_sum_of_a_statistic_are_found(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is fitted on a sum that a true label has moved by one unit of 32,768 behind the vault's back."""
    release = RunVault.statistic

    def moved(vault: RunVault, *asked: Any) -> NoisyStatistic:
        found = release(vault, *asked)
        found.values.flags.writeable = True
        found.values[0, 0] += int(reveal(vault.side.labels)[vault.records.train].sum()) % 7
        return found

    monkeypatch.setattr(RunVault, "statistic", moved)
    content = job({"mechanism": "discrete", "epsilon": 1.0}, epochs=1).model_dump(exclude={"method"})
    agreed = make_job({**content, "statistic": {}}, {}, "test")
    result = replay(agreed, tmp_path / "replay", seed=2)
    assert not result.passed
    assert "label/statistic_head.safetensors" in {difference.file for difference in result.differences}
