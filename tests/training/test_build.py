from pathlib import Path

import numpy as np
import pytest
import torch

from tpsl.data.features import Features
from tpsl.mechanisms import randomized_response
from tpsl.models import Bottom, Top
from tpsl.training.build import build_feature_party, build_label_party, weight_generator
from tpsl.training.job import Job
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
