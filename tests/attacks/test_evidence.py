"""The white-box attacker recovers each noisy label from the gradient, under every estimator."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from tpsl.attacks.evidence import Evidence, LabelReading
from tpsl.attacks.white_box import WhiteBox
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import Estimator, Mechanism, identity, laplace, randomized_response
from tpsl.perturb import LogitGradient
from tpsl.run.job import make_job
from tpsl.run.own_parts import OwnParts
from tpsl.run.transcript import TranscriptStep
from tpsl.vault import Vault

TWO = [
    {"mechanism": "discrete", "epsilon": 1.0},
    {"mechanism": "laplace", "epsilon": 1.0},
    {"mechanism": "gaussian", "sigma": 1.0, "delta": 1e-5},
]


def released(run: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the mechanism, the rows of the transcript and the log-likelihoods of their releases, from the vault."""
    mechanism = run.job.privacy.build(run.data.classes)
    rows = np.concatenate([seen.rows for seen in run.transcript])
    with Vault.open(run.path / "label" / "vault") as vault:
        noisy = vault.noisy_labels(mechanism, run.data.ids.take(pa.array(rows)), seed=run.job.privacy.noise_seed)
    return mechanism, rows, mechanism.log_likelihood(noisy.draws[0])


def read(run: Any, mechanism: Any) -> np.ndarray:
    white_box = WhiteBox(run.job, ["feature"], run.data.classes, run.trajectory)
    evidence = Evidence(white_box, mechanism, run.job.privacy.estimator)
    return np.concatenate([evidence(seen) for seen in run.transcript])


@pytest.mark.parametrize("privacy", TWO, ids=lambda p: p["mechanism"])
@pytest.mark.parametrize("estimator", ["linear", "unbiased", "posterior"])
def test_two_classes(recorded: Callable[..., Any], privacy: dict[str, Any], estimator: str) -> None:
    run = recorded({**privacy, "estimator": estimator})
    mechanism, _, likelihood = released(run)
    found = read(run, mechanism)
    assert (found != 0).mean() > 0.95
    np.testing.assert_allclose(found[found != 0], (likelihood[:, 1] - likelihood[:, 0])[found != 0], atol=0.05)


@pytest.mark.parametrize(
    ("mechanism", "estimator"),
    [("discrete", "linear"), ("discrete", "unbiased"), ("discrete", "posterior"), ("laplace", "posterior")],
)
def test_k_classes(recorded: Callable[..., Any], mechanism: str, estimator: str) -> None:
    run = recorded({"mechanism": mechanism, "epsilon": 2.0, "estimator": estimator}, data={"classes": 4})
    table, _, likelihood = released(run)
    found = read(run, table)
    readable = (found != 0).any(axis=1)
    assert readable.mean() > 0.9
    expected = likelihood - likelihood.max(axis=1, keepdims=True)
    right = np.isclose(found, expected, atol=0.05).all(axis=1)
    assert right[readable].mean() > 0.99
    assert right.all() or mechanism != "discrete"


def test_without_noise_the_label_itself_is_read(recorded: Callable[..., Any]) -> None:
    for estimator in ("linear", "posterior"):
        run = recorded({"mechanism": "none", "estimator": estimator})
        mechanism, rows, _ = released(run)
        found = read(run, mechanism)
        readable = found != 0
        assert readable.mean() > 0.95
        assert ((found > 0) == (reveal(run.data.labels)[rows] == 1))[readable].all()


def answered(
    top: nn.Module, cut: Tensor, mechanism: Mechanism, outcomes: np.ndarray, estimator: Estimator = "posterior"
) -> LabelReading:
    """Return what the attacker reads off one step in which this top half, with these outcomes, has answered a cut."""
    classes, embeddings = mechanism.classes, cut.requires_grad_()
    job = make_job({"model": {"cut": cut.shape[1]}}, {}, "test")
    gradient, z = LogitGradient(mechanism, estimator), top(embeddings)
    z.backward(gradient(z.detach(), gradient.evidence(outcomes)))
    assert embeddings.grad is not None
    seen = TranscriptStep(0, np.arange(len(cut)), cut.detach().numpy(), embeddings.grad.numpy())
    white_box = WhiteBox(job, ["feature"], classes, own=OwnParts(top=top))
    return Evidence(white_box, mechanism, estimator).read(seen)


def linear(weight: list[list[float]]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=False)
    layer.weight.data = torch.tensor(weight)
    return layer


def test_without_noise_a_label_is_read_however_sure_the_network_is() -> None:
    """A logit 40 ahead hides all others in float32; the gradient still says which label it was made for."""
    cut = torch.tensor([[40.0, 0.0, 0.0]]).repeat(3, 1)
    for estimator in get_args(Estimator):
        found = answered(linear(np.eye(3).tolist()), cut.clone(), identity(3), np.arange(3), estimator)
        assert found.readable.all()
        assert found.evidence.argmax(axis=1).tolist() == [0, 1, 2]


def test_k_classes_are_read_however_sure_the_network_is() -> None:
    """In float32 its probabilities are 1 and next to nothing; what noise makes of them still shows."""
    mechanism, outcomes = randomized_response(3.0, 10), np.arange(1000) % 10
    cut = 30 * torch.rand(1000, 10, generator=torch.Generator().manual_seed(1))
    found = answered(linear(np.eye(10).tolist()), cut, mechanism, outcomes)
    assert found.readable.all()
    np.testing.assert_allclose(found.evidence, np.where(np.eye(10)[outcomes] == 1, 0.0, -3.0), atol=1e-3)


@pytest.mark.parametrize("estimator", get_args(Estimator))
@pytest.mark.parametrize("active", [1, 2])
def test_k_classes_are_read_through_fewer_directions_than_classes(active: int, estimator: Estimator) -> None:
    """With one active unit gradients for all labels lie on a line, but at places of their own."""
    mechanism, outcomes = randomized_response(2.0, 4), np.arange(400) % 4
    hidden = linear([[1.0, 0.0], [0.0, 1.0 if active == 2 else -1.0]])
    top = nn.Sequential(hidden, nn.ReLU(), linear([[1.0, 0.3], [-0.4, 1.1], [0.2, -0.9], [-1.3, 0.5]]))
    cut = torch.rand(400, 2, generator=torch.Generator().manual_seed(1)) + 0.1
    found = answered(top, cut, mechanism, outcomes, estimator)
    assert found.readable.all()
    np.testing.assert_allclose(found.evidence, np.where(np.eye(4)[outcomes] == 1, 0.0, -2.0), atol=1e-3)


def test_noise_on_each_coordinate_is_not_read_through_fewer_directions_than_classes() -> None:
    """Nothing is read rather than something wrong."""
    mechanism, top = laplace(2.0, 4), linear([[1.0, 0.3], [-0.4, 1.1], [0.2, -0.9], [-1.3, 0.5]])
    cut = torch.rand(100, 2, generator=torch.Generator().manual_seed(1))
    found = answered(top, cut, mechanism, mechanism.release(np.arange(100) % 4, 1).outcomes)
    assert not found.readable.any()
    assert not found.evidence.any()


def test_a_gradient_that_is_the_same_for_all_labels_says_nothing() -> None:
    """No unit of the top half is active for the first record."""
    top = nn.Sequential(nn.ReLU(), linear([[1.0, 0.3], [-0.4, 1.1], [0.2, -0.9]]))
    found = answered(top, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), randomized_response(2.0, 3), np.array([1, 1]))
    assert found.readable.tolist() == [False, True]
    np.testing.assert_allclose(found.evidence, [[0.0, 0.0, 0.0], [-2.0, 0.0, -2.0]], atol=1e-3)


def test_labels_with_the_same_gradient_are_equally_likely() -> None:
    """The network tells the last of three classes from the others, and those not from each other."""
    top, mechanism = linear([[1.0], [1.0], [-1.0]]), randomized_response(2.0, 3)
    found = answered(top, torch.ones(3, 1), mechanism, np.arange(3))
    assert found.readable.all()
    own, other = np.exp(2.0) / (np.exp(2.0) + 2), 1 / (np.exp(2.0) + 2)
    either = np.log(2 * other / (own + other))
    np.testing.assert_allclose(found.evidence, [[0, 0, either], [0, 0, either], [-2, -2, 0]], atol=1e-3)
