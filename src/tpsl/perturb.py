"""GradPerturb: noisy label + logits → logit gradient (Algorithms 2 and 4, applied at the logit as in section 4.2).

The perturbed gradient is `Σ_j t_j g_j`, a linear map of the noisy label t. So the label party computes the perturbed
gradient at the logit, where the per-class derivatives `v_j = ∂ℓ(z, j)/∂z` are elementwise, and one backward pass
carries it to its own weights and to the cut. Everything here is post-processing of t: no estimator costs any ε, and
no true label is at hand.

| estimator   | logit gradient, two classes       | what it is                                                     |
|-------------|-----------------------------------|----------------------------------------------------------------|
| `linear`    | `σ(z) - t`                        | the paper; unbiased for Laplace and Gaussian, for no other     |
| `unbiased`  | `σ(z) - (t - μ_0) / (μ_1 - μ_0)`  | unbiased for every mechanism, `μ_y = E[t given y]`             |
| `posterior` | `σ(z) - σ(z + λ_t)`               | maximum likelihood given t, bounded; `λ_t = ln P(t|1)/P(t|0)`  |
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tpsl.mechanisms import Estimator, Mechanism
from tpsl.registry import ExtensionError, Registry


def grad_perturb(noisy: Tensor, gradients: Tensor) -> Tensor:
    """Return `(1-t)·g_0 + t·g_1` (Algorithm 2), or `Σ_j t_j g_j` for k classes (Algorithm 4).

    `gradients[j]` holds the gradients `[n, …]` for label j, of any shape; `noisy` holds t, of shape `[n]` for two
    classes and `[n, k]` for k. One formula for every label: the rounding of the result cannot depend on the label
    other than through t.
    """
    weights = torch.stack([1 - noisy, noisy], dim=1) if noisy.ndim == 1 else noisy
    if weights.shape != gradients.shape[1::-1]:
        raise ValueError(f"noisy labels {tuple(noisy.shape)} do not fit gradients {tuple(gradients.shape)}")
    result = torch.zeros_like(gradients[0])
    for weight, gradient in zip(weights.unbind(dim=1), gradients, strict=True):
        result += weight.reshape(-1, *[1] * (gradient.ndim - 1)) * gradient
    return result


class Loss(abc.ABC):
    """A loss on the logits of a record, for each label that it may have; a user's own needs `log_probabilities` alone.

    Logits have shape `[n]` for two classes and `[n, k]` for k; class weights have shape `[n, k]`. What is returned for
    a record depends on its own logits alone.
    """

    @abc.abstractmethod
    def log_probabilities(self, z: Tensor) -> Tensor:
        """Return `ln P(label j | z)` under the model, shape `[n, k]`; the `posterior` estimator reweighs it."""

    def losses(self, z: Tensor) -> Tensor:
        """Return `ℓ(z, j)` for each label j, shape `[n, k]`: by default `-ln P(label j | z)`."""
        return -self.log_probabilities(z)

    def derivatives(self, z: Tensor) -> Tensor:
        """Return `v_j = ∂ℓ(z, j)/∂z`, stacked over labels: shape `[k, n]` or `[k, n, k]`; by default with autograd."""
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            sums = self.losses(z).sum(dim=0)
            gradients = [torch.autograd.grad(loss, z, retain_graph=True)[0] for loss in sums.unbind()]
        return torch.stack(gradients)

    def log_odds(self, z: Tensor) -> Tensor:
        """Return what a sigmoid (two classes, `[n]`) or a softmax (`[n, k]`) turns into the model's probabilities."""
        found = self.log_probabilities(z)
        return found[:, 1] - found[:, 0] if found.shape[1] == 2 else found

    def probabilities(self, z: Tensor) -> Tensor:
        """Return the probability of class 1 for two classes, shape `[n]`, and of each class for k, `[n, k]`."""
        log_odds = self.log_odds(z)
        return torch.sigmoid(log_odds) if log_odds.ndim == 1 else torch.softmax(log_odds, dim=1)

    def weighted(self, z: Tensor, weights: Tensor) -> Tensor:
        """Return `Σ_j w_j v_j`; weights of shape `[n]` mean `(1-w, w)`."""
        return grad_perturb(weights, self.derivatives(z))

    def posterior(self, z: Tensor, log_likelihood: Tensor) -> Tensor:
        """Return `Σ_j P(label j | z, t) v_j`, the gradient of `-ln P(t | z)`."""
        return self.weighted(z, torch.softmax(self.log_probabilities(z) + log_likelihood, dim=1))


class BinaryCrossEntropy(Loss):
    """`ℓ(z, y) = -ln σ(z)` for y = 1 and `-ln σ(-z)` for y = 0, with one logit a record."""

    def derivatives(self, z: Tensor) -> Tensor:
        """Return `σ(z)` for label 0 and `σ(z) - 1` for label 1."""
        probability = torch.sigmoid(z)
        return torch.stack([probability, probability - 1])

    def log_probabilities(self, z: Tensor) -> Tensor:
        """Return `ln σ(-z)` and `ln σ(z)`."""
        return torch.nn.functional.logsigmoid(torch.stack([-z, z], dim=1))

    def log_odds(self, z: Tensor) -> Tensor:
        """Return z itself."""
        return z

    def weighted(self, z: Tensor, weights: Tensor) -> Tensor:
        """Return `σ(z) - t`, which is `(1-t)·v_0 + t·v_1`."""
        return torch.sigmoid(z) - weights

    def posterior(self, z: Tensor, log_likelihood: Tensor) -> Tensor:
        """Return `σ(z) - σ(z + λ)`; the log-likelihood ratio λ has shape `[n]`."""
        return torch.sigmoid(z) - torch.sigmoid(z + log_likelihood)


class SoftmaxCrossEntropy(Loss):
    """`ℓ(z, y) = -ln softmax(z)_y`, with k logits a record."""

    def derivatives(self, z: Tensor) -> Tensor:
        """Return `softmax(z) - e_j`."""
        return torch.softmax(z, dim=1) - torch.eye(z.shape[1], dtype=z.dtype, device=z.device)[:, None, :]

    def log_probabilities(self, z: Tensor) -> Tensor:
        """Return the log-softmax."""
        return torch.log_softmax(z, dim=1)

    def log_odds(self, z: Tensor) -> Tensor:
        """Return z itself."""
        return z

    def weighted(self, z: Tensor, weights: Tensor) -> Tensor:
        """Return `(Σ_j w_j)·softmax(z) - w`."""
        return weights.sum(dim=1, keepdim=True) * torch.softmax(z, dim=1) - weights

    def posterior(self, z: Tensor, log_likelihood: Tensor) -> Tensor:
        """Return `softmax(z) - softmax(z + λ)`."""
        return torch.softmax(z, dim=1) - torch.softmax(z + log_likelihood, dim=1)


def cross_entropy(classes: int) -> Loss:
    """Return the loss of the paper: logistic for two classes, softmax for more."""
    return BinaryCrossEntropy() if classes == 2 else SoftmaxCrossEntropy()


LOSSES: Registry[Callable[..., Loss]] = Registry("loss")
"""Losses by name: each is called with the number of classes."""
LOSSES.register("cross_entropy", cross_entropy)


def make_loss(name: str, classes: int) -> Loss:
    """Return the loss of this name; one that fails, or does not fit the number of classes, is a sentence."""
    make, z = LOSSES.get(name), torch.zeros(3) if classes == 2 else torch.zeros(3, classes)
    try:
        loss = make(classes)
        shapes = {tuple(method(z).shape) for method in (loss.log_probabilities, loss.losses)}
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ExtensionError(f"the loss {name} fails for {classes} classes ({reason})") from error
    if shapes != {(3, classes)}:
        raise ExtensionError(f"the loss {name} must give a number for each of {classes} classes, of 3 records {shapes}")
    return loss


class LogitGradient:
    """The logit gradient of one mechanism under one estimator and loss: what the label party calls in each step."""

    def __init__(self, mechanism: Mechanism, estimator: Estimator, loss: Loss | None = None) -> None:
        if estimator not in get_args(Estimator):
            raise ValueError(f"unknown estimator {estimator!r}; known are {', '.join(get_args(Estimator))}")
        self.mechanism = mechanism
        self.estimator = estimator
        self.loss = loss or cross_entropy(mechanism.classes)

    def evidence(self, outcomes: npt.NDArray[np.unsignedinteger]) -> Tensor:
        """Return what the estimator needs to know of the outcomes: t, the debiased t, or the log-likelihood of t.

        Computed once before training, from outcomes alone: float32, shape `[n]` for two classes, `[n, k]` for k.
        """
        if self.estimator == "posterior":
            likelihood = self.mechanism.log_likelihood(outcomes)
            if self.mechanism.classes == 2 and isinstance(self.loss, BinaryCrossEntropy):
                evidence = likelihood[:, 1] - likelihood[:, 0]
            else:
                evidence = likelihood - likelihood.max(axis=1, keepdims=True)
        else:
            unbiased = self.estimator == "unbiased"
            evidence = (self.mechanism.unbiased_values if unbiased else self.mechanism.values)[outcomes]
        return torch.from_numpy(evidence.astype(np.float32))

    def __call__(self, z: Tensor, evidence: Tensor) -> Tensor:
        """Return the perturbed logit gradient `ṽ` of section 4.2 for each record of the batch."""
        if self.estimator == "posterior":
            return self.loss.posterior(z, evidence)
        return self.loss.weighted(z, evidence)
