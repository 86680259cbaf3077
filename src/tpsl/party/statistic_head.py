"""The private head that one noisy statistic gives: logistic regression on a feature map φ.

For `p_i = σ(w·φ_i)` the log-likelihood is `w·T - Σ_i ln(1 + e^{w·φ_i})`: labels enter through `T = Σ_i y_i φ_i` alone.
With noise of variance σ² on T a step of Newton's method in the eigenbasis of `H = Σ_i p_i(1-p_i) φ_i φ_iᵀ` sees
`r_j ~ N(h_j w_j, h_j + σ²)`, and with the prior `w_j ~ N(0, τ²)`, τ² of maximum evidence, the posterior mean is
`w_j = r_j·h_j/(h_j + σ²) / (h_j²/(h_j + σ²) + 1/τ²)`. All of it is post-processing of the noisy statistic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tpsl.party.feature_map import FeatureMap, Inputs, blocks
from tpsl.vault import NoisyStatistic

Floats = npt.NDArray[np.float64]

_ROUNDS = 4
_VARIANCES = np.geomspace(1e-4, 1e4, 65)  # candidates for τ²
_MAP, _WEIGHTS = "map.", "weights"


class StatisticHead(nn.Module):
    """A feature map and weights of its coordinates: one column for two classes, k for k."""

    weights: Tensor

    def __init__(self, feature_map: FeatureMap, weights: Tensor) -> None:
        super().__init__()
        self.map = feature_map
        self.register_buffer(_WEIGHTS, weights)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of records: `[n]` for two classes, `[n, k]` for k."""
        logits: Tensor = self.map(inputs) @ self.weights
        return logits.squeeze(1) if self.weights.shape[1] == 1 else logits

    @torch.no_grad()
    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return the probability of class 1, `[n]`, or of each of k classes, `[n, k]`."""
        logits = self(inputs)
        return torch.sigmoid(logits) if logits.ndim == 1 else torch.softmax(logits, dim=1)

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Self:
        """Return the head whose `state_dict` this is."""
        feature_map = {name.removeprefix(_MAP): part for name, part in state.items() if name.startswith(_MAP)}
        return cls(FeatureMap(feature_map), state[_WEIGHTS])


@torch.no_grad()
def fit_head(statistic: NoisyStatistic, feature_map: FeatureMap, inputs: Inputs) -> StatisticHead:
    """Return the head that the statistic of these records gives; deterministic."""
    bound = statistic.plan.bound
    sums = statistic.values.astype(np.float64) / bound
    variance = (statistic.plan.noise.deviation / bound) ** 2
    weights = [_fit_one(total, variance, feature_map, inputs) for total in sums]
    return StatisticHead(feature_map, torch.from_numpy(np.stack(weights, axis=1).astype(np.float32)))


def _fit_one(total: Floats, variance: float, feature_map: FeatureMap, inputs: Inputs) -> Floats:
    """Return the weights of one class against the rest."""
    weights = np.zeros(feature_map.width)
    for _ in range(_ROUNDS):
        expected, curvature = np.zeros_like(weights), np.zeros((len(weights), len(weights)))
        for block in blocks(inputs):
            phi = feature_map(torch.from_numpy(block)).numpy().astype(np.float64)
            p = 1 / (1 + np.exp(-np.clip(phi @ weights, -30, 30)))
            expected += p @ phi
            curvature += (phi * (p * (1 - p))[:, None]).T @ phi
        eigenvalues, basis = np.linalg.eigh(curvature)
        h = np.maximum(eigenvalues, 1e-12)
        r = basis.T @ (total - expected + curvature @ weights)
        precision = h**2 / (h + variance)
        evidence = [_evidence(r, h, variance, prior) for prior in _VARIANCES]
        prior = _VARIANCES[int(np.argmax(evidence))]
        weights = basis @ (r * h / (h + variance) / (precision + 1 / prior))
    return weights


def _evidence(r: Floats, h: Floats, variance: float, prior: float) -> float:
    """Return the log-likelihood of `r_j ~ N(0, h_j² τ² + h_j + σ²)`, up to a constant."""
    spread = h**2 * prior + h + variance
    return float(-0.5 * (np.log(spread) + r**2 / spread).sum())
