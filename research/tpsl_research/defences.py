"""Defences to compare with. NOT covered by the vault's guarantee: they read true labels while training.

The label party computes true gradients, updates its own half with them, and changes only what it sends. None of them
comes with an ε for the whole run: the label party's weights, and so everything sent later, depend on the true labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.models.halves import Tops, seed_of
from tpsl.models.optimizer import HalfOptimizer
from tpsl.perturb import LogitGradient
from tpsl.run.build import NO_PARTS, LabelPartyBuilder, build_top
from tpsl.run.job import Job
from tpsl.run.own_parts import OwnParts
from tpsl.split.label_party import LabelParty
from tpsl.vault import NoisyLabels
from tpsl.workers import HERE, Placement

DefenceName = Literal["gaussian-cut", "max-norm", "marvell"]


@dataclass(frozen=True)
class Defence:
    """A defence at the cut and how strong it is.

    `gaussian-cut`: isotropic Gaussian noise of standard deviation `strength·‖g_1 - g_0‖` (the paper's section 3.1).
    `max-norm`: noise along each gradient until all expected norms are the largest of the batch (Li et al. 2021); no
    strength. `marvell`: the noise that makes positive and negative gradients hardest to tell apart with power
    `strength·‖Δg‖²` (Li et al.).
    """

    name: DefenceName
    strength: float = 1.0


class DefendedLabelParty(LabelParty):
    """A label party that trains on true labels and perturbs the gradients it sends at the cut."""

    def __init__(
        self,
        top: Tops,
        optimizer: HalfOptimizer,
        logit_gradient: LogitGradient,
        noisy: NoisyLabels,
        defence: Defence,
        generator: torch.Generator,
    ) -> None:
        if logit_gradient.mechanism.name != "none" or logit_gradient.mechanism.classes != 2:
            raise ValueError(f"{defence.name} works on true labels of two classes: use it with mechanism 'none'")
        super().__init__(top, optimizer, logit_gradient, noisy)
        self._labels = torch.from_numpy(noisy.draws[0].astype(np.int64)).to(self.device)
        self._defence = defence
        self._generator = generator

    def backward(self, batch: Rows, rows: Rows, received: Sequence[Tensor], records: int) -> list[Tensor]:
        """Go back as in Algorithm 1 and return perturbed gradients."""
        (embeddings,) = received
        labels = self._labels[torch.from_numpy(np.require(batch, requirements=["W"])).to(self.device)]
        with torch.no_grad():
            slope = torch.sigmoid(self.top([embeddings.to(self.device)])[0]) - labels
        (gradients,) = super().backward(batch, rows, received, records)
        if self._defence.name == "gaussian-cut":
            # g = (σ(z) - y)·∂z/∂e and g_1 - g_0 = -∂z/∂e.
            distance = gradients.norm(dim=1) / slope.abs().clamp_min(1e-12)
            noise = _normal(gradients.shape, self._generator, self.device)
            return [gradients + noise * (self._defence.strength * distance)[:, None]]
        if self._defence.name == "max-norm":
            return [max_norm(gradients, self._generator)]
        return [marvell(gradients, labels, self._defence.strength, self._generator)]


def _normal(shape: Sequence[int], generator: torch.Generator, device: torch.device) -> Tensor:
    """Return standard normal numbers, the same on every device."""
    return torch.randn(*shape, generator=generator).to(device)


def max_norm(gradients: Tensor, generator: torch.Generator) -> Tensor:
    """Return `g_i + sqrt(‖g_max‖²/‖g_i‖² - 1)·n_i·g_i` with standard normal n_i: every `E‖g̃_i‖²` is `‖g_max‖²`."""
    squared = gradients.square().sum(dim=1).clamp_min(torch.finfo(gradients.dtype).tiny)
    scale = (squared.max() / squared - 1).clamp_min(0).sqrt()
    return gradients * (1 + scale * _normal(gradients.shape[:1], generator, gradients.device))[:, None]


def marvell(gradients: Tensor, labels: Tensor, power: float, generator: torch.Generator) -> Tensor:
    """Add to positives and negatives the Gaussian noise of Li et al. (2021), Theorem 2.

    Noise of each class has one variance along `Δg`, the difference of the class means, and one in all other
    directions; the four variances minimise the symmetrised KL divergence between the perturbed classes at an
    expected power of `power·‖Δg‖²`. Batches without both classes are sent as they are.
    """
    positive = labels == 1
    share = float(positive.float().mean())
    if share in (0.0, 1.0) or power <= 0:
        return gradients
    means = gradients[positive].mean(dim=0), gradients[~positive].mean(dim=0)
    difference = means[0] - means[1]
    distance = float(difference.square().sum())
    if distance == 0.0:
        return gradients
    d = gradients.shape[1]
    spread = [
        float((gradients[chosen] - mean).square().sum(dim=1).mean()) / d
        for chosen, mean in ((positive, means[0]), (~positive, means[1]))
    ]
    variances = marvell_variances(share, d, distance, spread[0], spread[1], power * distance)
    along = difference / math.sqrt(distance)
    noise = _normal(gradients.shape, generator, gradients.device)
    parallel = noise @ along
    across = noise - parallel[:, None] * along
    first, other = (
        torch.where(positive, math.sqrt(if_positive), math.sqrt(if_negative)) for if_positive, if_negative in variances
    )
    return gradients + other[:, None] * across + (first * parallel)[:, None] * along


def marvell_variances(
    share: float, d: int, distance: float, v: float, u: float, budget: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the noise variances along and across Δg, each of positives and of negatives, that minimise the divergence.

    `v` and `u` are the variances of positive and negative gradients themselves. The budget is divided by two shares,
    each searched on a grid that is refined around the best point; the objective is smooth and the optimum flat.
    """

    def divergence(x: np.ndarray) -> np.ndarray:
        a1, b1, a0, b0 = (part + base for part, base in zip(x, (v, v, u, u), strict=True))
        return np.asarray((d - 1) * (b0 / b1 + b1 / b0) + (a0 + distance) / a1 + (a1 + distance) / a0)

    def split(shares: np.ndarray) -> np.ndarray:
        """Shares of the power: positives' along, positives' across, negatives' along; the rest is negatives' across."""
        rest = np.clip(1 - shares.sum(axis=0), 0, None)
        weights = (share, share * (d - 1), 1 - share, (1 - share) * (d - 1))
        return np.stack([budget * part / weight for part, weight in zip((*shares, rest), weights, strict=True)])

    centre, width = np.full(3, 0.5), 0.5
    for _ in range(12):
        axes = [np.clip(np.linspace(c - width, c + width, 11), 0, 1) for c in centre]
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
        grid = grid[:, grid.sum(axis=0) <= 1 + 1e-12]
        x = split(grid)
        # Noise along Δg is never smaller than across it.
        score = np.where((x[0] >= x[1]) & (x[2] >= x[3]), divergence(x), np.inf)
        centre, width = grid[:, int(score.argmin())], width * 0.5
    best = split(centre[:, None])[:, 0]
    return (float(best[0]), float(best[2])), (float(best[1]), float(best[3]))


def defended(defence: Defence, seed: int) -> LabelPartyBuilder:
    """Return a builder of label parties with this defence, for `tpsl.run.one_process.train`."""

    def build(
        job: Job,
        parties: Sequence[str],
        classes: int,
        noisy: NoisyLabels,
        features: Features | Inputs | None,
        own: OwnParts = NO_PARTS,
        place: Placement = HERE,
    ) -> LabelParty:
        if (
            len(parties) != 1
            or features is not None
            or job.model.members != 1
            or job.model.wide
            or job.training.averaging
        ):
            raise ValueError(
                f"{defence.name} is for one feature party, a label party without features, "
                "one member, no wide part and no averaging"
            )
        top = build_top(job, parties, classes, own).to(place.device)
        return DefendedLabelParty(
            top,
            HalfOptimizer(top, job.training.label_optimizer),
            LogitGradient(noisy.mechanism, "linear"),
            noisy,
            defence,
            torch.Generator().manual_seed(seed_of("tpsl weights", seed, f"noise of {defence.name}")),
        )

    return build
