"""One step of the two parties against the paper's algorithms, written out literally."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from tpsl.data.features import Features
from tpsl.mechanisms import Mechanism, identity, laplace, randomized_response
from tpsl.models.halves import Bottom, Bottoms, Top, Tops
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.perturb import LogitGradient
from tpsl.split.feature_party import FeatureParty
from tpsl.split.label_party import LabelParty
from tpsl.vault import NoisyLabels, Vault

N = 96
SGD = OptimizerConfig(name="sgd", learning_rate=0.3)
CONFIG = ModelConfig(embedding_dim=4, bottom=(16, 8), top=(16, 8))


def features(seed: int) -> Features:
    rng = np.random.default_rng(seed)
    return Features(
        rng.integers(0, 30, (N, 3)).astype(np.int32),
        rng.normal(size=(N, 2)).astype(np.float32),
        30,
        ("a", "b", "c"),
        ("x", "y"),
    )


def labels() -> np.ndarray:
    return np.random.default_rng(9).integers(0, 2, N)


def noisy(folder: Path, mechanism: Mechanism, draws: int = 1, truth: np.ndarray | None = None) -> NoisyLabels:
    ids = [str(i) for i in range(N)]
    with Vault.create(folder, batches=[(ids, labels() if truth is None else truth, None)]) as vault:
        vault.release(mechanism, draws=draws)
        return vault.noisy_labels(mechanism, ids, draws=draws)


def bottom(seed: int, updates: str = "dense") -> Bottom:
    config = CONFIG.model_copy(update={"embedding_updates": updates})
    return Bottom(30, 3, 2, config, torch.Generator().manual_seed(seed))


def top(width: int) -> Top:
    return Top(width, 2, CONFIG, torch.Generator().manual_seed(99))


def feature_party(seed: int) -> FeatureParty:
    half = Bottoms([bottom(seed)], 8)
    return FeatureParty(half, HalfOptimizer(half, SGD), features(seed))


def label_party(released: NoisyLabels, estimator: str = "linear", parties: int = 1, own: bool = False) -> LabelParty:
    half = Tops([top(8 * (parties + own))], 2)
    gradient = LogitGradient(released.mechanism, estimator)  # type: ignore[arg-type]
    return LabelParty(half, HalfOptimizer(half, SGD), gradient, released, feature_party(77) if own else None)


def one_epoch(parties: list[FeatureParty], label: LabelParty, batch_size: int = 32) -> list[torch.Tensor]:
    sent = []
    for start in range(0, N, batch_size):
        rows = np.arange(start, min(N, start + batch_size))
        gradients = label.backward(rows, rows, [party.forward(rows) for party in parties], len(rows))
        label.update()
        for party, gradient in zip(parties, gradients, strict=True):
            party.backward(gradient, len(rows))
            party.update()
        sent += gradients
    return sent


def test_without_noise_a_step_is_algorithm_1_to_the_bit(tmp_path: Path) -> None:
    party, label = feature_party(1), label_party(noisy(tmp_path / "v", identity()))
    sent = one_epoch([party], label)

    f, h, data, y = bottom(1), top(8), features(1), torch.from_numpy(labels()).float()
    expected = []
    for start in range(0, N, 32):
        x = torch.from_numpy(data.categorical[start : start + 32]), torch.from_numpy(data.numeric[start : start + 32])
        e = f(*x)
        cut = e.detach().requires_grad_()
        losses = functional.binary_cross_entropy_with_logits(h(cut), y[start : start + 32], reduction="none")
        losses.sum().backward()
        expected.append(cut.grad)
        e.backward(cut.grad / 32)
        with torch.no_grad():
            for p in h.parameters():
                p.sub_(p.grad / 32, alpha=0.3)
            for p in f.parameters():
                p.sub_(p.grad, alpha=0.3)
        for p in [*h.parameters(), *f.parameters()]:
            p.grad = None
    for a, b in zip(sent, expected, strict=True):
        assert torch.equal(a, b)
    for mine, plain in zip(
        [*party.bottom.parameters(), *label.top.parameters()], [*f.parameters(), *h.parameters()], strict=True
    ):
        assert torch.equal(mine, plain)


@pytest.mark.parametrize("mechanism", [laplace(1.0), randomized_response(1.0)], ids=str)
def test_sent_gradients_are_grad_perturb_of_g_0_and_g_1(tmp_path: Path, mechanism: Mechanism) -> None:
    """Section 4.2 perturbs at the logit; by the chain rule that is Algorithm 2 at the cut, with the same t."""
    released = noisy(tmp_path / "v", mechanism)
    party, label = feature_party(1), label_party(released)
    rows = np.arange(N)
    h, cut = top(8), party.forward(rows).detach().requires_grad_()
    g_0, g_1 = (
        torch.autograd.grad(
            functional.binary_cross_entropy_with_logits(h(cut), torch.full((N,), float(j)), reduction="sum"), cut
        )[0]
        for j in (0, 1)
    )
    t = torch.from_numpy(mechanism.noisy(released.draws[0])).float()[:, None]
    (sent,) = label.backward(rows, rows, [cut.detach()], len(rows))
    torch.testing.assert_close(sent, (1 - t) * g_0 + t * g_1, rtol=1e-3, atol=1e-5)


def test_own_update_is_the_average_of_perturbed_gradients(tmp_path: Path) -> None:
    released = noisy(tmp_path / "v", laplace(1.0))
    label, party = label_party(released), feature_party(1)
    rows = np.arange(N)
    before = [p.detach().clone() for p in label.top.parameters()]
    h, t = top(8), torch.from_numpy(released.mechanism.noisy(released.draws[0])).float()
    cut = party.forward(rows)
    losses = [
        functional.binary_cross_entropy_with_logits(h(cut), torch.full((N,), float(j)), reduction="none")
        for j in (0, 1)
    ]
    ((1 - t) * losses[0] + t * losses[1]).mean().backward()
    label.backward(rows, rows, [cut], len(rows))
    label.update()
    for mine, old, plain in zip(label.top.parameters(), before, h.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), old - 0.3 * plain.grad, rtol=1e-4, atol=1e-6)


def test_algorithm_3_sends_one_draw_and_learns_from_the_other(tmp_path: Path) -> None:
    released = noisy(tmp_path / "v", randomized_response(0.3), draws=2)
    assert released.epsilon == pytest.approx(0.6)
    rows = np.arange(N)
    cut = feature_party(1).forward(rows)
    both = label_party(released)
    (sent,) = both.backward(rows, rows, [cut], len(rows))
    first, second = released.take(rows), released.take(rows)
    object.__setattr__(first, "draws", (released.draws[0],))
    object.__setattr__(second, "draws", (released.draws[1],))
    of_first, of_second = label_party(first), label_party(second)
    (sent_first,) = of_first.backward(rows, rows, [cut], len(rows))
    (sent_second,) = of_second.backward(rows, rows, [cut], len(rows))
    for label in (both, of_first, of_second):
        label.update()
    assert torch.equal(sent, sent_first)
    assert not torch.equal(sent, sent_second)
    for mine, wanted in zip(both.top.parameters(), of_second.top.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-7)
    # Not of every weight: the output's bias sees the number of ones, which two draws can have in common.
    assert not torch.equal(both.top.members[0].layers[0].weight, of_first.top.members[0].layers[0].weight)


def test_several_feature_parties_and_own_features_equal_one_network(tmp_path: Path) -> None:
    parties = [feature_party(1), feature_party(2)]
    label = label_party(noisy(tmp_path / "v", identity()), parties=2, own=True)
    one_epoch(parties, label)

    halves, h = [bottom(1), bottom(2), bottom(77)], top(24)
    optimizer = torch.optim.SGD([p for half in [*halves, h] for p in half.parameters()], lr=0.3)
    held, y = [features(1), features(2), features(77)], torch.from_numpy(labels()).float()
    for start in range(0, N, 32):
        part = slice(start, start + 32)
        cut = [
            f(torch.from_numpy(x.categorical[part]), torch.from_numpy(x.numeric[part]))
            for f, x in zip(halves, held, strict=True)
        ]
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(h(torch.cat(cut, dim=1)), y[part]).backward()
        optimizer.step()
    mine = [parties[0].bottom, parties[1].bottom, label.own.bottom, label.top]
    for ours, plain in zip(mine, [*halves, h], strict=True):
        for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_true_labels_do_not_matter_once_released(tmp_path: Path) -> None:
    released = noisy(tmp_path / "v", randomized_response(1.0))
    ids = [str(i) for i in range(N)]
    with Vault.open(tmp_path / "v") as vault:
        vault.add([(ids, 1 - labels(), None)])
        after = vault.noisy_labels(released.mechanism, ids)
    results = []
    for held in (released, after):
        party, label = feature_party(1), label_party(held, "posterior")
        sent = one_epoch([party], label)
        results.append([*sent, *party.bottom.parameters(), *label.top.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_label_party_takes_nothing_but_noisy_labels() -> None:
    half = Tops([top(8)], 2)
    with pytest.raises(TypeError, match="trains on NoisyLabels from a vault, not on ndarray"):
        LabelParty(half, HalfOptimizer(half, SGD), LogitGradient(identity(), "linear"), labels())  # type: ignore[arg-type]


def test_backward_needs_a_forward() -> None:
    with pytest.raises(RuntimeError, match="backward without a forward"):
        feature_party(1).backward(torch.zeros(3, 8), 3)


@pytest.mark.parametrize("draws", [1, 2])
def test_parts_of_a_batch_add_up_to_the_batch(tmp_path: Path, draws: int) -> None:
    released = noisy(tmp_path / "v", laplace(1.0), draws=draws)
    whole, in_parts = (feature_party(1), label_party(released)), (feature_party(1), label_party(released))
    rows = np.arange(N)
    (sent,) = whole[1].backward(rows, rows, [whole[0].forward(rows)], N)
    whole[0].backward(sent, N)
    parts = np.array_split(rows, 3)
    # All forward passes before the first backward pass, as over a network.
    embeddings = [in_parts[0].forward(part) for part in parts]
    gradients = [in_parts[1].backward(part, part, [e], N)[0] for part, e in zip(parts, embeddings, strict=True)]
    for gradient in gradients:
        in_parts[0].backward(gradient, N)
    torch.testing.assert_close(torch.cat(gradients), sent, rtol=0, atol=1e-6)
    for party in (*whole, *in_parts):
        party.update()
    for one, other in zip((whole[0].bottom, whole[1].top), (in_parts[0].bottom, in_parts[1].top), strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("updates", ["dense", "lazy"])
def test_running_ahead_gives_gradients_at_the_weights_of_the_forward_pass(updates: str) -> None:
    first, second = np.arange(32), np.arange(32, 64)
    gradients = [torch.randn(32, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    half = Bottoms([bottom(1, updates)], 8)
    ahead = FeatureParty(half, HalfOptimizer(half, SGD), features(1), run_ahead=True)
    ahead.forward(first)
    ahead.forward(second)  # before the update of the first batch
    for gradient in gradients:
        ahead.backward(gradient, 32)
        ahead.update()

    plain, data = bottom(1), features(1)
    steps = []
    for rows, gradient in zip((first, second), gradients, strict=True):
        cut = plain(torch.from_numpy(data.categorical[rows]), torch.from_numpy(data.numeric[rows]))
        steps.append(torch.autograd.grad(cut, list(plain.parameters()), gradient / 32))
    for mine, start, *gradient in zip(half.parameters(), plain.parameters(), *steps, strict=True):
        torch.testing.assert_close(mine, start - 0.3 * gradient[0] - 0.3 * gradient[1], rtol=0, atol=1e-6)
    assert not torch.equal(half.members[0].layers[0].weight, plain.layers[0].weight)


def test_without_running_ahead_a_late_backward_is_an_error() -> None:
    party = feature_party(1)
    rows = np.arange(32)
    party.forward(rows), party.forward(rows)
    party.backward(torch.ones(32, 8), 32)
    party.update()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        party.backward(torch.ones(32, 8), 32)


def test_predictions_are_probabilities(tmp_path: Path) -> None:
    party, label = feature_party(1), label_party(noisy(tmp_path / "v", identity()))
    p = label.predict(np.arange(N), [party.embed(np.arange(N))])
    assert p.shape == (N,)
    assert ((p > 0) & (p < 1)).all()


M = 3
ADAM = OptimizerConfig(name="adam", learning_rate=0.01)


def of_classes(folder: Path, classes: int, draws: int = 1) -> NoisyLabels:
    ids, mechanism = [str(i) for i in range(N)], randomized_response(1.0, classes)
    truth = np.random.default_rng(8).integers(0, classes, N)
    with Vault.create(folder, classes=classes, batches=[(ids, truth, None)]) as vault:
        vault.release(mechanism, draws=draws)
        return vault.noisy_labels(mechanism, ids, draws=draws)


def network(
    members: list[int],
    released: NoisyLabels,
    *,
    parties: int = 1,
    own: bool = False,
    averaging: float = 0.0,
    run_ahead: bool = False,
) -> tuple[list[FeatureParty], LabelParty]:
    """The parties of a network of these members: the seed of a half is its own, and the member's."""
    config = CONFIG.model_copy(update={"members": len(members)})

    def generators(half: int) -> list[torch.Generator]:
        return [torch.Generator().manual_seed(100 * half + member) for member in members]

    halves = [
        Bottoms([Bottom(30, 3, 2, config, generator) for generator in generators(seed)], 8)
        for seed in (*range(1, parties + 1), 77)
    ]
    updates = [HalfOptimizer(half, ADAM, averaging) for half in halves]
    feature_parties = [
        FeatureParty(half, update, features(seed), run_ahead=run_ahead)
        for seed, half, update in zip(range(1, parties + 1), halves, updates, strict=False)
    ]
    classes, width = released.mechanism.classes, 8 * (parties + own)
    top_half = Tops([Top(width, classes, config, generator) for generator in generators(99)], classes)
    held = FeatureParty(halves[-1], updates[-1], features(77)) if own else None
    gradient = LogitGradient(released.mechanism, "posterior")
    return feature_parties, LabelParty(top_half, HalfOptimizer(top_half, ADAM, averaging), gradient, released, held)


def halves_of(parties: list[FeatureParty], label: LabelParty) -> list[torch.nn.Module]:
    return [*(party.bottom for party in parties), *(half for half, _ in label.halves.values())]


@pytest.mark.parametrize(
    ("classes", "draws", "parties", "own"),
    [(2, 1, 1, False), (2, 2, 1, False), (2, 1, 2, True), (5, 1, 1, False), (5, 2, 2, True)],
)
def test_every_member_learns_as_if_it_were_alone(
    tmp_path: Path, classes: int, draws: int, parties: int, own: bool
) -> None:
    """To the last bit: gradients sent, weights of all halves."""
    released = of_classes(tmp_path / "v", classes, draws)
    together = network(list(range(M)), released, parties=parties, own=own)
    sent = [gradient for _ in range(3) for gradient in one_epoch(*together)]
    logits = []
    for member in range(M):
        alone = network([member], released, parties=parties, own=own)
        expected = [gradient for _ in range(3) for gradient in one_epoch(*alone)]
        for mine, its in zip(sent, expected, strict=True):
            assert torch.equal(mine[:, 8 * member : 8 * (member + 1)], its)
        for half, single in zip(halves_of(*together), halves_of(*alone), strict=True):
            for name, weight in single.state_dict().items():
                assert torch.equal(half.state_dict()[name.replace("members.0", f"members.{member}")], weight)
        rows = np.arange(N)
        p = alone[1].predict(rows, [party.embed(rows) for party in alone[0]])
        logits.append(torch.logit(p) if classes == 2 else p.log())
    mean = torch.stack(logits).mean(dim=0)
    found = together[1].predict(rows, [party.embed(rows) for party in together[0]])
    torch.testing.assert_close(found, torch.sigmoid(mean) if classes == 2 else torch.softmax(mean, dim=1))
    assert found.shape == ((N,) if classes == 2 else (N, classes))


@pytest.mark.parametrize("members", [1, M])
def test_averaged_weights_predict_and_do_not_train(tmp_path: Path, members: int) -> None:
    released, rows = of_classes(tmp_path / "v", 2), np.arange(N)
    averaged, plain = (
        network(list(range(members)), released, own=True, averaging=averaging) for averaging in (0.9, 0.0)
    )
    for _ in range(10):  # 30 steps, with predictions between them
        sent = [one_epoch(*parties) for parties in (averaged, plain)]
        assert all(torch.equal(a, b) for a, b in zip(*sent, strict=True))
        found, without = (
            label.predict(rows, [party.embed(rows) for party in parties]) for parties, label in (averaged, plain)
        )
    for half, unaveraged in zip(halves_of(*averaged), halves_of(*plain), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(half.parameters(), unaveraged.parameters(), strict=True))
    assert not torch.allclose(found, without)

    # The averages put into a network for good predict the same.
    parties, label = network(list(range(members)), released, own=True)
    for half, (source, update) in zip(
        halves_of(parties, label),
        [(averaged[0][0].bottom, averaged[0][0].optimizer), *averaged[1].halves.values()],
        strict=True,
    ):
        with update.averaged():
            half.load_state_dict(source.state_dict())
    assert torch.equal(found, label.predict(rows, [party.embed(rows) for party in parties]))


def test_true_labels_do_not_matter_to_members_and_averages(tmp_path: Path) -> None:
    released = noisy(tmp_path / "v", randomized_response(1.0))
    ids, rows = [str(i) for i in range(N)], np.arange(N)
    with Vault.open(tmp_path / "v") as vault:
        vault.add([(ids, 1 - labels(), None)])
        after = vault.noisy_labels(released.mechanism, ids)
    results = []
    for held in (released, after):
        parties, label = network(list(range(M)), held, averaging=0.9)
        sent = [gradient for _ in range(8) for gradient in one_epoch(parties, label)]
        states = [update.state()[0] for update in (parties[0].optimizer, label.optimizer)]
        kept = [tensor for state in states for tensor in state.values()]
        predicted = label.predict(rows, [parties[0].embed(rows)])
        weights = [p for half in halves_of(parties, label) for p in half.parameters()]
        results.append([*sent, *kept, *weights, predicted])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_members_run_ahead_like_one_network(tmp_path: Path) -> None:
    """Also with a prediction, which puts other weights in place, between a forward pass and its backward pass."""
    released = of_classes(tmp_path / "v", 2)
    batches = [np.arange(start, start + 12) for start in range(0, N, 12)] * 4
    gradients = [torch.randn(12, 8 * M, generator=torch.Generator().manual_seed(seed)) for seed in range(len(batches))]
    (together,), _ = network(list(range(M)), released, averaging=0.9, run_ahead=True)
    singles = [network([member], released, run_ahead=True)[0][0] for member in range(M)]
    for party in (together, *singles):
        party.forward(batches[0])
    for number, gradient in enumerate(gradients):
        for party, its in ((together, gradient), *zip(singles, gradient.split(8, dim=1), strict=True)):
            if number + 1 < len(batches):
                party.forward(batches[number + 1])
            party.embed(batches[0])
            party.backward(its, 12)
            party.update()
    for member, single in enumerate(singles):
        for name, weight in single.bottom.state_dict().items():
            assert torch.equal(together.bottom.state_dict()[name.replace("members.0", f"members.{member}")], weight)
