"""The local head learns from true labels what is there to learn, the same way every time."""

import numpy as np
import pytest
import torch

from tpsl import metrics
from tpsl.heads.local_training import HeadPart, HoldOut, LocalHead, train_local_head


def records(classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(4000, 6)).astype(np.float32)
    inputs[:, 0] = 1000 + 0.01 * inputs[:, 0]  # nearly constant, far from 0: only standardised it says anything
    inputs[:, 5] = 7.0
    score = 100 * (inputs[:, 0] - 1000) * np.sign(inputs[:, 1])
    edges = np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1])
    return inputs, np.searchsorted(edges, score + 0.1 * rng.normal(size=len(score))).astype(np.int64)


@pytest.mark.parametrize("classes", [2, 4])
def test_it_learns_from_true_labels(classes: int) -> None:
    inputs, labels = records(classes)
    head = train_local_head(inputs[:3000], labels[:3000], classes, seed=0)
    probabilities = head.predict(inputs[3000:])
    assert probabilities.shape == ((1000,) if classes == 2 else (1000, classes))
    assert metrics.accuracy(probabilities, labels[3000:]) > 0.7


def test_it_is_a_function_of_its_arguments() -> None:
    inputs, labels = records(2)
    first, second, other = (train_local_head(inputs[:500], labels[:500], 2, seed=seed) for seed in (3, 3, 4))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert any(not torch.equal(value, other.state_dict()[name]) for name, value in first.state_dict().items())


def test_a_mapped_file_gives_the_same_head(tmp_path: object) -> None:
    inputs, labels = records(2)
    path = f"{tmp_path}/inputs"
    inputs.tofile(path)
    mapped = np.memmap(path, dtype=np.float32, mode="r").reshape(-1, 6)
    for one, other in zip(
        train_local_head(inputs[:300], labels[:300], 2, 0).parameters(),
        train_local_head(mapped[:300], labels[:300], 2, 0).parameters(),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_a_linear_part_goes_on_where_hidden_layers_have_seen_nothing() -> None:
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(600, 24)).astype(np.float32)
    labels = (inputs.sum(axis=1) / 4 + rng.logistic(size=600) > 0).astype(np.int64)
    head = train_local_head(inputs, labels, 2, seed=0)
    linear, hidden = head.parts
    shifted = 3 * rng.normal(size=(2000, 24)).astype(np.float32) + 2
    truth = (shifted.sum(axis=1) / 4 + rng.logistic(size=2000) > 0).astype(np.int64)
    with torch.no_grad():
        found = [part(torch.from_numpy(shifted)) for part in (linear, hidden, head)]
    aucs = [metrics.auc((logits[:, 1] - logits[:, 0]).numpy(), truth).value for logits in found]
    assert aucs[0] > aucs[1], "nothing to learn by heart"
    assert aucs[2] > aucs[1], "and the hold-out set trusts it"


@pytest.mark.parametrize("classes", [2, 4])
def test_a_head_is_rebuilt_from_its_state_whatever_its_parts_are(classes: int) -> None:
    inputs, labels = records(classes)
    hold_out = HoldOut(np.arange(50), np.arange(3), np.arange(3, 3 + (1 if classes == 2 else classes)) % 6)
    head = train_local_head(inputs[:300], labels[:300], classes, 0, hold_out=hold_out)
    assert [len(part.layers) for part in head.parts] == [1, 5, 5]
    again = LocalHead.of(head.state_dict())
    assert np.array_equal(again.predict(inputs), head.predict(inputs))
    generator = torch.Generator().manual_seed(0)
    before = LocalHead([HeadPart(np.arange(6), (16, 8), classes, generator)], np.empty(0, dtype=np.int64))
    before.weights.fill_(1.0)
    assert np.array_equal(LocalHead.of(before.state_dict()).predict(inputs), before.predict(inputs)), "a single part"
