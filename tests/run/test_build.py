from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tpsl.data.features import Features
from tpsl.mechanisms import randomized_response
from tpsl.models.halves import Bottom, Top, seed_of
from tpsl.registry import ExtensionError
from tpsl.run.build import build_feature_party, build_label_party
from tpsl.run.checkpoint import load_checkpoint, save_checkpoint
from tpsl.run.job import Job
from tpsl.run.own_parts import OwnParts
from tpsl.split.feature_party import FeatureParty
from tpsl.split.label_party import LabelParty
from tpsl.vault import NoisyLabels, Vault

N = 60
PARTIES = ("bank", "shop")


def job(members: int = 1, averaging: float = 0.0) -> Job:
    agreed = Job.model_validate(
        {"model": {"embedding_dim": 2, "bottom": (8, 4), "top": (8,), "members": members}, "training": {"seed": 7}}
    )
    return agreed.model_copy(update={"training": agreed.training.model_copy(update={"averaging": averaging})})


def features() -> Features:
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(N, 1)).astype(np.float32)
    return Features(rng.integers(0, 20, (N, 2)).astype(np.int32), numbers, 20, ("a", "b"), ("x",))


@pytest.fixture
def noisy(tmp_path: Path) -> NoisyLabels:
    ids, mechanism = [str(i) for i in range(N)], randomized_response(1.0)
    truth = np.random.default_rng(2).integers(0, 2, N)
    with Vault.create(tmp_path / "vault", batches=[(ids, truth, None)]) as vault:
        vault.release(mechanism)
        return vault.noisy_labels(mechanism, ids)


def weight_generator(seed: int, half: str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of("tpsl weights", seed, half))


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_without_members_the_halves_are_the_plain_ones(noisy: NoisyLabels) -> None:
    agreed = job()
    party, label = (
        build_feature_party(agreed, "bank", features()),
        build_label_party(agreed, PARTIES, 2, noisy, features()),
    )
    assert same(party.bottom.members[0], Bottom(20, 2, 1, agreed.model, weight_generator(7, "bank")))
    assert label.own is not None
    assert same(label.own.bottom.members[0], Bottom(20, 2, 1, agreed.model, weight_generator(7, "label bottom")))
    assert same(label.top.members[0], Top(12, 2, agreed.model, weight_generator(7, "label top")))


@pytest.mark.parametrize(
    ("rows", "training", "is_lazy"),
    [
        (50_000, {"feature_optimizer": {"name": "sgd"}}, True),
        (50_000, {"feature_optimizer": {"name": "adagrad"}}, True),
        (49_999, {"feature_optimizer": {"name": "sgd"}}, False),
        (50_000, {"feature_optimizer": {"name": "adam"}}, False),
        (50_000, {"feature_optimizer": {"name": "sgd", "arguments": {"momentum": 0.9}}}, False),
        (50_000, {"feature_optimizer": {"name": "sgd"}, "averaging": 0.9}, False),
        (50_000, {"feature_optimizer": {"name": "sgd"}, "pretrain": {"method": "masked"}}, False),
        (200_000, {"feature_optimizer": {"name": "adam"}}, True),
    ],
)
def test_updates_are_lazy_from_few_rows_on_where_that_changes_no_weight(
    rows: int, training: dict[str, Any], is_lazy: bool
) -> None:
    agreed = Job.model_validate({"model": {"embedding_dim": 1, "bottom": [2]}, "training": training})
    bottom = build_feature_party(agreed, "bank", replace(features(), embedding_rows=rows)).bottom.members[0]
    assert isinstance(bottom, Bottom) and bottom.embedding is not None
    assert bottom.embedding.sparse is is_lazy


def test_every_member_has_initial_weights_of_its_own_and_the_first_those_of_one_network(noisy: NoisyLabels) -> None:
    agreed, one = job(members=3), job()
    built = []
    for config in (agreed, one):
        party, label = (
            build_feature_party(config, "bank", features()),
            build_label_party(config, PARTIES, 2, noisy, features()),
        )
        assert label.own is not None
        built.append([party.bottom, label.own.bottom, label.top])
    for half, single, name in zip(*built, ("bank", "label bottom", "label top"), strict=True):
        (single,) = single.members
        assert same(half.members[0], single)
        for number in (1, 2):
            generator = weight_generator(7, f"{name} member {number}")
            alone = (
                Top(12, 2, agreed.model, generator) if name == "label top" else Bottom(20, 2, 1, one.model, generator)
            )
            assert same(half.members[number], alone)
            assert not same(half.members[number], single)


@pytest.mark.parametrize("members", [1, 3])
def test_parties_fit_each_other_and_predict_by_the_average(noisy: NoisyLabels, members: int) -> None:
    rows = np.arange(N)
    found = []
    for averaging in (0.0, 0.9):
        agreed = job(members, averaging)
        parties = [build_feature_party(agreed, name, features()) for name in ("bank", "shop")]
        label = build_label_party(agreed, PARTIES, 2, noisy, features())
        for _ in range(25):
            embeddings = [party.forward(rows) for party in parties]
            assert all(e.shape == (N, agreed.model.cut_width("bank")) for e in embeddings)
            for party, gradient in zip(parties, label.backward(rows, rows, embeddings, N), strict=True):
                party.backward(gradient, N)
                party.update()
            label.update()
        held = [optimizer.state()[0] for _, optimizer in label.halves.values()] + [
            p.optimizer.state()[0] for p in parties
        ]
        assert all(("average/steps" in state) == (averaging > 0) for state in held)
        found.append(label.predict(rows, [party.embed(rows) for party in parties]))
    assert found[0].shape == (N,)
    assert not torch.allclose(*found)


class Pictures:
    """Inputs of a user's own: a picture and a number for each record."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.pictures, self.numbers = (
            torch.randn(N, 1, 4, 4, generator=generator),
            torch.randn(N, 2, generator=generator),
        )

    def __len__(self) -> int:
        return N

    def batch(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.pictures.numpy()[rows], self.numbers.numpy()[rows]


class Convolutions(nn.Module):
    """A half with a buffer that changes in every step, and with weights that two layers share."""

    def __init__(self, width: int, inputs: Pictures, channels: int = 3) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, channels, 2), nn.BatchNorm2d(channels)
        self.twice, self.out = nn.Linear(2, 2), nn.Linear(channels * 9 + inputs.numbers.shape[1], width)

    def forward(self, pictures: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(self.norm(self.convolution(pictures))).flatten(start_dim=1)
        return self.out(torch.cat([seen, self.twice(torch.tanh(self.twice(numbers)))], dim=1))


def own_top(cut: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(cut, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1 if classes == 2 else classes))


def own_job(**training: Any) -> Job:
    return Job.model_validate(
        {
            "model": {"bottom": (8, 4), "cut": {"label": 3}, "members": 2},
            "training": {"seed": 7, "averaging": 0.9, **training},
        }
    )


def own_parties(agreed: Job, noisy: NoisyLabels) -> tuple[FeatureParty, LabelParty]:
    feature = build_feature_party(agreed, "feature", Pictures(1), OwnParts(bottom=Convolutions))
    parts = OwnParts(bottom=partial(Convolutions, channels=2), top=own_top)
    return feature, build_label_party(agreed, ["feature"], 2, noisy, Pictures(2), parts)


def own_steps(feature: FeatureParty, label: LabelParty, start: int, stop: int) -> None:
    for step in range(start, stop):
        rows = np.random.default_rng(step).permutation(N)[:20]
        (gradient,) = label.backward(rows, rows, [feature.forward(rows)], 20)
        feature.backward(gradient, 20)
        feature.update()
        label.update()


def test_own_halves_learn_and_resume_bit_for_bit_with_their_buffers(noisy: NoisyLabels, tmp_path: Path) -> None:
    agreed = own_job(label_optimizer={"name": "RMSprop"})
    unbroken, resumed = own_parties(agreed, noisy), own_parties(agreed, noisy)
    feature, label = unbroken
    assert feature.embed(np.arange(2)).shape == (2, 8)  # two members of the default width
    assert label.own.bottom.width == 6
    halves = {"feature": (feature.bottom, feature.optimizer), **label.halves}
    own_steps(*unbroken, 0, 4)
    save_checkpoint(tmp_path, 4, "job", halves)
    own_steps(*unbroken, 4, 8)
    feature, label = resumed
    load_checkpoint(tmp_path, 4, "job", {"feature": (feature.bottom, feature.optimizer), **label.halves})
    own_steps(*resumed, 4, 8)
    rows = np.arange(N)
    predicted = []
    for feature, label in (unbroken, resumed):
        predicted.append(label.predict(rows, [feature.embed(rows)]))
    assert torch.equal(*predicted)
    for (half, _), (again, _) in zip(unbroken[1].halves.values(), resumed[1].halves.values(), strict=True):
        assert same(half, again)
    assert same(unbroken[0].bottom, resumed[0].bottom)
    state = unbroken[0].bottom.state_dict()
    assert state["members.0.norm.num_batches_tracked"] == 8
    assert state["members.0.norm.running_mean"].abs().min() > 0


def test_prediction_leaves_buffers_as_they_are_and_averages_leave_them_out(noisy: NoisyLabels) -> None:
    feature, label = own_parties(own_job(), noisy)
    own_steps(feature, label, 0, 5)
    before = {name: value.clone() for name, value in feature.bottom.state_dict().items()}
    rows = np.arange(N)
    together = feature.embed(rows)
    torch.testing.assert_close(together[:3], feature.embed(rows[:3]))  # not by the statistics of a batch
    assert all(torch.equal(value, before[name]) for name, value in feature.bottom.state_dict().items())
    with feature.optimizer.averaged():
        averaged = feature.bottom.state_dict()
        changed = {name.split(".")[-1] for name in averaged if not torch.equal(averaged[name], before[name])}
    assert changed == {"weight", "bias"}


def test_own_halves_run_ahead_at_the_weights_of_their_forward_pass() -> None:
    agreed = own_job(staleness=1, feature_optimizer={"name": "sgd", "learning_rate": 0.5})
    ahead = build_feature_party(agreed, "feature", Pictures(1), OwnParts(bottom=Convolutions))
    plain = build_feature_party(agreed, "feature", Pictures(1), OwnParts(bottom=Convolutions))
    batches = np.arange(N).reshape(2, -1)
    gradients = torch.randn(2, 30, 8, generator=torch.Generator().manual_seed(0))
    start = [p.detach().clone() for p in plain.bottom.parameters()]
    for rows in batches:
        ahead.forward(rows)
    for gradient in gradients:
        ahead.backward(gradient, 30)
        ahead.update()
    for rows, gradient in zip(batches, gradients, strict=True):
        plain.share(rows).backward(gradient / 30)
    for mine, before, other in zip(ahead.bottom.parameters(), start, plain.bottom.parameters(), strict=True):
        torch.testing.assert_close(mine, before - 0.5 * other.grad, rtol=0, atol=1e-6)


def test_a_module_is_copied_and_needs_one_member(noisy: NoisyLabels) -> None:
    given = Convolutions(4, Pictures(1))
    one = Job.model_validate({"model": {"bottom": (8, 4)}})
    built = [build_feature_party(one, "feature", Pictures(1), OwnParts(bottom=given)).bottom for _ in range(2)]
    assert same(built[0].members[0], given)
    assert built[0].members[0] is not given
    assert built[0].members[0] is not built[1].members[0]
    with pytest.raises(ExtensionError, match="Convolutions has the same weights in each member"):
        build_feature_party(own_job(), "feature", Pictures(1), OwnParts(bottom=given))


@pytest.mark.parametrize(
    ("parts", "changes", "reason"),
    [
        ({}, {}, "feature has inputs of its own, so it needs a bottom half of its own"),
        ({"bottom": "no_such_module:half"}, {}, "the bottom half of feature no_such_module:half cannot be imported"),
        ({"bottom": nn.Linear}, {}, r"the bottom half of feature Linear fails \(TypeError: .*'width'"),
        ({"bottom": Convolutions}, {"model": {"wide": True}}, "model.wide is for the bottom half that comes with tpsl"),
        (
            {"bottom": Convolutions},
            {"training": {"pretrain": {"method": "masked"}}},
            "training.pretrain is for the bottom half that comes with tpsl; feature has its own, Convolutions",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(parts: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExtensionError, match=reason):
        build_feature_party(Job.model_validate(changes), "feature", Pictures(1), OwnParts(**parts))


def test_widths_of_shares_may_differ(noisy: NoisyLabels) -> None:
    files = [{"path": f"{party}.csv", "party": party, "numeric": ["x"]} for party in PARTIES]
    content: dict[str, Any] = {
        "data": {"source": "table", "features": files, "label": {"path": "labels.csv"}},
        "model": {"bottom": (8, 4), "cut": {"bank": 5, "shop": 2}, "members": 2},
    }
    agreed = Job.model_validate(content)
    parties = [build_feature_party(agreed, name, features()) for name in PARTIES]
    label = build_label_party(agreed, PARTIES, 2, noisy, features())
    rows = np.arange(N)
    embeddings = [party.forward(rows) for party in parties]
    assert [e.shape[1] for e in embeddings] == [10, 4]
    gradients = label.backward(rows, rows, embeddings, N)
    assert [g.shape for g in gradients] == [e.shape for e in embeddings]
    assert [agreed.head_width(name) for name in (*PARTIES, "label")] == [10, 4, 8]
    assert agreed.widest_share == 10
    content["model"]["cut"] = {"nobody": 3}
    with pytest.raises(ValueError, match=r"model.cut names 'nobody'; the parties are bank, shop, label"):
        Job.model_validate(content)
    with pytest.raises(ValueError, match="with a wide part all shares of the cut have one width"):
        Job.model_validate({"model": {"wide": True, "cut": {"feature": 3}}})
