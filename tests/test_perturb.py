"""GradPerturb: every estimator against the paper's formulas, against autograd and against exact expectations."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tpsl.mechanisms import (
    Mechanism,
    gaussian,
    identity,
    laplace,
    optimized_unary,
    randomized_response,
    subset_selection,
)
from tpsl.perturb import (
    LOSSES,
    BinaryCrossEntropy,
    LogitGradient,
    Loss,
    SoftmaxCrossEntropy,
    cross_entropy,
    grad_perturb,
    make_loss,
)
from tpsl.registry import ExtensionError

BINARY = [
    laplace(0.5),
    laplace(2.0),
    randomized_response(0.5),
    randomized_response(2.0),
    gaussian(1.0, 1e-5),
    optimized_unary(1.0, 2),
]
MULTI = [randomized_response(1.0, 5), randomized_response(3.0, 7)]


def all_outcomes(mechanism: Mechanism) -> np.ndarray:
    return np.arange(mechanism.outcomes, dtype=mechanism.outcome_dtype)


@pytest.mark.parametrize("shape", [(), (3,), (4, 2)])
def test_grad_perturb_is_algorithm_2(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    g_0, g_1 = torch.randn(2, 50, *shape, generator=generator, dtype=torch.float64)
    u = torch.randn(50, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (50,), generator=generator)
    t = y + u * (1 - 2 * y)
    expand = (-1, *[1] * len(shape))
    g_y = torch.where(y.reshape(expand).bool(), g_1, g_0)
    g_other = torch.where(y.reshape(expand).bool(), g_0, g_1)
    literal = g_y + u.reshape(expand) * (g_other - g_y)
    torch.testing.assert_close(grad_perturb(t, torch.stack([g_0, g_1])), literal, rtol=0, atol=1e-12)


def test_grad_perturb_is_algorithm_4() -> None:
    generator = torch.Generator().manual_seed(2)
    k, n = 4, 30
    gradients = torch.randn(k, n, 6, generator=generator, dtype=torch.float64)
    u = torch.randn(n, k, generator=generator, dtype=torch.float64)
    y = torch.randint(0, k, (n,), generator=generator)
    literal = gradients[y, torch.arange(n)] + torch.einsum("nk,knd->nd", u, gradients)
    noisy = functional.one_hot(y, k) + u
    torch.testing.assert_close(grad_perturb(noisy, gradients), literal, rtol=0, atol=1e-12)


def test_grad_perturb_names_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\(5,\) do not fit gradients \(3, 5, 2\)"):
        grad_perturb(torch.zeros(5), torch.zeros(3, 5, 2))


@pytest.mark.parametrize("mechanism", BINARY, ids=str)
def test_linear_is_the_gradient_of_the_mixed_loss(mechanism: Mechanism) -> None:
    outcomes = all_outcomes(mechanism)
    gradient = LogitGradient(mechanism, "linear")
    z = torch.linspace(-4, 4, len(outcomes), requires_grad=True)
    t = gradient.evidence(outcomes)
    zero, one = torch.zeros_like(z), torch.ones_like(z)
    mixed = (1 - t) * functional.binary_cross_entropy_with_logits(z, zero, reduction="none")
    mixed = mixed + t * functional.binary_cross_entropy_with_logits(z, one, reduction="none")
    (expected,) = torch.autograd.grad(mixed.sum(), z)
    torch.testing.assert_close(gradient(z.detach(), t), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mechanism", [*BINARY, *MULTI], ids=str)
def test_unbiased_has_the_true_gradient_as_its_exact_expectation(mechanism: Mechanism) -> None:
    k = mechanism.classes
    outcomes = all_outcomes(mechanism)
    gradient = LogitGradient(mechanism, "unbiased")
    logits = torch.tensor(0.7) if k == 2 else torch.linspace(-1, 1, k)
    z = logits.expand(len(outcomes), *logits.shape)
    drawn = gradient(z, gradient.evidence(outcomes)).double()
    for y in range(k):
        probability = torch.from_numpy(mechanism.weights[y].astype(np.float64) / 2.0**64)
        expected = torch.tensordot(probability, drawn, dims=1)
        target = torch.tensor(float(y)) if k == 2 else functional.one_hot(torch.tensor(y), k)
        truth = (torch.sigmoid(logits) if k == 2 else torch.softmax(logits, 0)) - target
        torch.testing.assert_close(expected.float(), truth.float(), rtol=0, atol=2e-5)


def test_linear_is_biased_for_discrete_and_unbiased_for_laplace() -> None:
    for mechanism, biased in ((laplace(1.0), False), (randomized_response(1.0), True)):
        gradient = LogitGradient(mechanism, "linear")
        t = gradient.evidence(all_outcomes(mechanism)).double()
        mean_if_1 = float(t @ torch.from_numpy(mechanism.weights[1].astype(np.float64) / 2.0**64))
        assert (abs(mean_if_1 - 1.0) > 0.1) == biased


@pytest.mark.parametrize("mechanism", [*BINARY, *MULTI], ids=str)
def test_posterior_is_the_gradient_of_minus_log_likelihood(mechanism: Mechanism) -> None:
    k = mechanism.classes
    outcomes = all_outcomes(mechanism)
    gradient = LogitGradient(mechanism, "posterior")
    generator = torch.Generator().manual_seed(3)
    shape = (len(outcomes),) if k == 2 else (len(outcomes), k)
    z = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    log_prior = BinaryCrossEntropy().log_probabilities(z) if k == 2 else torch.log_softmax(z, dim=1)
    likelihood = torch.from_numpy(mechanism.log_likelihood(outcomes))
    (expected,) = torch.autograd.grad(-torch.logsumexp(log_prior + likelihood, dim=1).sum(), z)
    found = gradient(z.detach(), gradient.evidence(outcomes).double())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert found.abs().max() <= 1


@pytest.mark.parametrize("mechanism", [laplace(1.0, 4), gaussian(1.0, 1e-4, 4)], ids=str)
def test_estimators_with_coordinates(mechanism: Mechanism) -> None:
    labels = np.arange(4).repeat(50_000)
    outcomes = mechanism.release(labels, rng=11).outcomes
    z = torch.linspace(-1, 1, 4).expand(len(labels), 4)
    truth = torch.softmax(z[0], 0) - torch.eye(4)
    for estimator in ("linear", "unbiased"):
        gradient = LogitGradient(mechanism, estimator)
        means = gradient(z, gradient.evidence(outcomes)).reshape(4, 50_000, 4).mean(dim=1)
        deviation = math.sqrt(float(np.max(mechanism.variance(0))) * 2 / 50_000)
        assert (means - truth).abs().max() < 6 * deviation
    posterior = LogitGradient(mechanism, "posterior")
    assert posterior(z, posterior.evidence(outcomes)).abs().max() <= 1


@pytest.mark.parametrize("mechanism", [subset_selection(0.5, 5), optimized_unary(0.5, 4)], ids=str)
def test_estimators_with_a_bit_for_each_class(mechanism: Mechanism) -> None:
    """Over all vectors of bits that can come: the exact expectation of one estimator, the likelihood of the other."""
    k = mechanism.classes
    sizes = {2} if mechanism.name == "subset_selection" else set(range(k + 1))
    vectors = [vector for vector in itertools.product((0, 1), repeat=k) if sum(vector) in sizes]
    outcomes = np.array(vectors, dtype=mechanism.outcome_dtype)
    likelihood = torch.from_numpy(mechanism.log_likelihood(outcomes))
    torch.testing.assert_close(likelihood.exp().sum(dim=0), torch.ones(k, dtype=torch.float64))
    logits = torch.linspace(-1, 1, k, dtype=torch.float64)
    z = logits.expand(len(vectors), k).clone().requires_grad_()

    unbiased = LogitGradient(mechanism, "unbiased")
    drawn = unbiased(z.detach(), unbiased.evidence(outcomes)).double()
    truth = torch.softmax(logits, 0) - torch.eye(k, dtype=torch.float64)
    torch.testing.assert_close(likelihood.exp().T @ drawn, truth, rtol=0, atol=1e-5)

    posterior = LogitGradient(mechanism, "posterior")
    (expected,) = torch.autograd.grad(-torch.logsumexp(torch.log_softmax(z, 1) + likelihood, dim=1).sum(), z)
    found = posterior(z.detach(), posterior.evidence(outcomes).double())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("estimator", ["linear", "unbiased", "posterior"])
@pytest.mark.parametrize("classes", [2, 5])
def test_without_noise_every_estimator_is_the_plain_gradient_to_the_bit(estimator: str, classes: int) -> None:
    generator = torch.Generator().manual_seed(4)
    labels = torch.randint(0, classes, (200,), generator=generator)
    z = torch.randn((200,) if classes == 2 else (200, classes), generator=generator) * 5
    gradient = LogitGradient(identity(classes), estimator)  # type: ignore[arg-type]
    found = gradient(z, gradient.evidence(identity(classes).release(labels.numpy()).outcomes))
    plain = torch.sigmoid(z) - labels if classes == 2 else torch.softmax(z, 1) - functional.one_hot(labels, classes)
    assert torch.equal(found, plain)


class Written(Loss):
    """A loss known by its derivatives alone: those of binary cross-entropy, or of softmax cross-entropy."""

    def __init__(self, same_as: Loss) -> None:
        self.same_as = same_as

    def derivatives(self, z: torch.Tensor) -> torch.Tensor:
        return self.same_as.derivatives(z)

    def log_probabilities(self, z: torch.Tensor) -> torch.Tensor:
        return self.same_as.log_probabilities(z)


@pytest.mark.parametrize("estimator", ["linear", "unbiased", "posterior"])
@pytest.mark.parametrize("mechanism", [randomized_response(1.0), laplace(1.0), randomized_response(1.0, 4)], ids=str)
def test_a_loss_given_by_its_derivatives_gives_the_same_gradient(mechanism: Mechanism, estimator: str) -> None:
    built_in = BinaryCrossEntropy() if mechanism.classes == 2 else SoftmaxCrossEntropy()
    outcomes = all_outcomes(mechanism)
    generator = torch.Generator().manual_seed(5)
    z = torch.randn((len(outcomes),) if mechanism.classes == 2 else (len(outcomes), 4), generator=generator)
    by_form, by_derivatives = (
        LogitGradient(mechanism, estimator, loss)  # type: ignore[arg-type]
        for loss in (built_in, Written(built_in))
    )
    torch.testing.assert_close(
        by_derivatives(z, by_derivatives.evidence(outcomes)),
        by_form(z, by_form.evidence(outcomes)),
        rtol=1e-4,
        atol=1e-5,
    )


class Focal(Loss):
    """`-(1 - p_j)^γ ln p_j` (Lin et al. 2017): a user's loss, written without any derivative."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def log_probabilities(self, z: torch.Tensor) -> torch.Tensor:
        return functional.logsigmoid(torch.stack([-z, z], dim=1)) if z.ndim == 1 else torch.log_softmax(z, dim=1)

    def losses(self, z: torch.Tensor) -> torch.Tensor:
        logarithms = self.log_probabilities(z)
        return -((1 - logarithms.exp()) ** self.gamma) * logarithms


@pytest.mark.parametrize("shape", [(9,), (9, 4)])
def test_a_loss_without_derivatives_gets_them_from_autograd(shape: tuple[int, ...]) -> None:
    z = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    with torch.no_grad():
        found = Focal(2.0).derivatives(z)
    assert found.shape == ((2, 9) if len(shape) == 1 else (4, 9, 4))
    step = 1e-6
    for column in range(1 if z.ndim == 1 else 4):
        aside = torch.full((1,), step).double() if z.ndim == 1 else step * torch.eye(4)[column].double()
        slopes = (Focal(2.0).losses(z + aside) - Focal(2.0).losses(z - aside)) / (2 * step)
        of_labels = found.T if z.ndim == 1 else found[:, :, column].T
        torch.testing.assert_close(of_labels, slopes, rtol=0, atol=1e-8)
    plain = cross_entropy(2 if z.ndim == 1 else 4)
    torch.testing.assert_close(Focal(0.0).derivatives(z), plain.derivatives(z))
    torch.testing.assert_close(Focal(2.0).probabilities(z), plain.probabilities(z))


class Probit(Loss):
    """Another link than the logistic one: `P(1 | z) = Φ(z)`."""

    def log_probabilities(self, z: torch.Tensor) -> torch.Tensor:
        return torch.special.log_ndtr(torch.stack([-z, z], dim=1))


def test_predictions_are_those_of_the_losss_own_link() -> None:
    z = torch.linspace(-3, 3, 9).double()
    torch.testing.assert_close(Probit().probabilities(z), torch.special.ndtr(z))
    torch.testing.assert_close(Probit().log_odds(z), torch.logit(torch.special.ndtr(z)))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda classes: 1 / 0, r"fails for 3 classes \(ZeroDivisionError: division by zero\)"),
        (lambda classes: Probit(), r"must give a number for each of 3 classes, of 3 records \{\(3, 2, 3\)\}"),
        (lambda classes: "none", r"fails for 3 classes \(AttributeError: "),
    ],
)
def test_a_loss_that_does_not_work_is_named(make: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES._parts, "broken", make)
    with pytest.raises(ExtensionError, match=f"^the loss broken {reason}"):
        make_loss("broken", 3)


def test_derivatives_are_those_of_autograd() -> None:
    z = torch.linspace(-5, 5, 12, requires_grad=True)
    for j, derivative in enumerate(BinaryCrossEntropy().derivatives(z.detach())):
        loss = functional.binary_cross_entropy_with_logits(z, torch.full_like(z, float(j)), reduction="sum")
        torch.testing.assert_close(torch.autograd.grad(loss, z)[0], derivative)
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(6), requires_grad=True)
    for j, derivative in enumerate(SoftmaxCrossEntropy().derivatives(z.detach())):
        loss = functional.cross_entropy(z, torch.full((7,), j), reduction="sum")
        torch.testing.assert_close(torch.autograd.grad(loss, z)[0], derivative)


def test_an_unknown_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown estimator 'best'; known are linear, unbiased, posterior"):
        LogitGradient(laplace(1.0), "best")  # type: ignore[arg-type]
