"""The private head that one noisy statistic gives: logistic regression on a feature map φ.

For `p_i = σ(w·φ_i)` the log-likelihood is `w·T - Σ_i ln(1 + e^{w·φ_i})`: labels enter through `T = Σ_i y_i φ_i` alone,
and so do they for k classes with one such sum a class. T comes with noise of variance σ². Linearised at w (Newton's
method), with the curvature `H = Σ_i p_i(1-p_i) φ_i φ_iᵀ`, it says

    r = T - Σ_i p_i φ_i + H·w  ~  N(H·w, H + σ²·I)

With the prior `w ~ N(0, Σ_t τ_t²·K_t)`, one K_t for each kind of features in φ, the posterior mean is the head. The τ_t²
are those of maximum evidence (empirical Bayes), found by the algorithm of Zhou, Hu, Zhou and Lange (2019) for variance
components. So features that tell nothing under this noise count nothing; where all of them together do not make what
was released more likely than the base rate alone does, the head is the base rate. All of it is post-processing.

A second statistic of the same records starts from the first head: its logits are added to those of w.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tpsl.data.arrays import RowStack
from tpsl.party.feature_map import ROWS_AT_ONCE, FeatureMap, Inputs, blocks
from tpsl.vault import NoisyStatistic

Integers = npt.NDArray[np.integer]

_ROUNDS = 6
_ROUNDS_OF_EVIDENCE, _STEPS = 2, 15
_CURVED = 32_768  # records that the curvature is computed from
_BASE_VARIANCE = 4.0  # of the base rate's log-odds, before the statistic is seen
_RELIABLE = math.log(20)
_MAP, _WEIGHTS, _FIRST = "map.", "weights", "first."


class StatisticHead(nn.Module):
    """A feature map and weights of its coordinates, one column for two classes, k for k, on top of a `first` head.

    What no statistic came before has no first head.
    """

    weights: Tensor

    def __init__(self, feature_map: FeatureMap, weights: Tensor, first: StatisticHead | None = None) -> None:
        super().__init__()
        self.map, self.first = feature_map, first
        self.register_buffer(_WEIGHTS, weights)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of records: `[n]` for two classes, `[n, k]` for k."""
        logits: Tensor = self.map(inputs) @ self.weights
        logits = logits.squeeze(1) if self.weights.shape[1] == 1 else logits
        return logits if self.first is None else logits + self.first(inputs)

    @torch.no_grad()
    def logits(self, inputs: Inputs) -> Inputs:
        """Return the logits of many records, block after block, `[n, 1]` for two classes."""
        found = RowStack(np.float32, self.weights.shape[1])
        for block in blocks(inputs):
            found.add(self(torch.from_numpy(block)).numpy())
        return found.finish()

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return the probability of class 1, `[n]`, or of each of k classes, `[n, k]`."""
        logits = self(inputs)
        return torch.sigmoid(logits) if logits.ndim == 1 else torch.softmax(logits, dim=1)

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Self:
        """Return the head whose `state_dict` this is."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}

        first = part(_FIRST)
        return cls(FeatureMap(part(_MAP)), state[_WEIGHTS], cls.of(first) if first else None)


@dataclass(frozen=True)
class FitReport:
    """What a statistic was good for."""

    records: int
    effective_labels: float
    """The number of clean labels that would say as much: `n·tr(H(H + σ²I)⁻¹H)/tr(H)`, the mean over classes."""
    evidence: float
    """How much more likely than with the base rate alone the released numbers are, in nats; the mean over classes.

    Of a second statistic: than with the first head and a base rate.
    """
    second: bool = False

    @property
    def reliable(self) -> bool:
        """Whether anything could be learned, besides the base rate and what a first head says."""
        return self.evidence > _RELIABLE

    def __str__(self) -> str:
        which, otherwise = ("second ", "first head") if self.second else ("", "base rate")
        worth = (
            f"the {which}statistic of {self.records:,} labels is worth about {self.effective_labels:,.0f} clean ones"
        )
        return worth if self.reliable else f"{worth}: nothing reliable can be learned, the head is the {otherwise}"


@dataclass(frozen=True)
class FirstHead:
    """A head that a second statistic starts from."""

    head: StatisticHead
    logits: Inputs
    """Its logits of the statistic's records: `[n, 1]` for two classes, `[n, k]` for k."""


@torch.no_grad()
def fit_head(
    statistic: NoisyStatistic, feature_map: FeatureMap, phi: Integers, first: FirstHead | None = None
) -> tuple[StatisticHead, FitReport]:
    """Return the head that the statistic of these records gives, and what it was good for; deterministic.

    `phi` are the integers that were summed, `[n, width]`; they may be a memory-mapped file.
    """
    bound = statistic.plan.bound
    fit = _Fit(
        sums=torch.from_numpy(statistic.values.astype(np.float64) / bound),
        variance=(statistic.plan.noise.deviation / bound) ** 2,
        rows=_Rows(phi, bound, None if first is None else first.logits),
        covariances=feature_map.weight_covariances(),
    )
    for number in range(_ROUNDS):
        fit.round(find_evidence=number < _ROUNDS_OF_EVIDENCE)
    report = replace(fit.report(), second=first is not None)
    if not report.reliable:
        fit.keep_base_rate_only()
    weights = fit.weights.T.float().contiguous()
    return StatisticHead(feature_map, weights, None if first is None else first.head), report


@dataclass(frozen=True)
class _Rows:
    """φ of the statistic's records as integers, and their logits by a first head, if there is one."""

    integers: Integers
    bound: int
    logits: Inputs | None

    def at(self, which: slice) -> tuple[Tensor, Tensor]:
        """Return φ of some records, and their logits by the first head, or zero."""
        phi = torch.from_numpy(self.integers[which].astype(np.float32)) / self.bound
        return phi, torch.zeros(1) if self.logits is None else torch.from_numpy(np.array(self.logits[which]))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.integers), ROWS_AT_ONCE):
            yield self.at(slice(start, start + ROWS_AT_ONCE))


class _Fit:
    """Newton's method for all classes, one row of weights a class."""

    def __init__(self, sums: Tensor, variance: float, rows: _Rows, covariances: Sequence[Tensor]) -> None:
        self._rows, self._count, self._covariances = rows, len(rows.integers), covariances
        self._classes = max(2, len(sums))
        self._sample, self._sample_logits = rows.at(slice(None, None, -(-self._count // _CURVED)))
        if self._classes > 2:
            # What the noise adds to all classes together is known, since their sums are Σ_i φ_i without it.
            every = sum(phi.double().sum(dim=0) for phi, _ in rows)
            sums = sums + (every - sums.sum(dim=0)) / len(sums)
            variance *= 1 - 1 / len(sums)
        self._sums, self._variance = sums, variance
        self.weights = torch.zeros_like(sums)
        self._components = [torch.ones(len(covariances), dtype=torch.float64) for _ in sums]
        self._worth, self._evidence = [0.0] * len(sums), [0.0] * len(sums)

    def round(self, *, find_evidence: bool) -> None:
        """Take a step of Newton's method for every class; the first ones find the variances of the prior, too."""
        left = self._sums - self._expected()
        probabilities = self._probabilities(self._sample, self._sample_logits)
        for number, residual in enumerate(left):
            p = probabilities[:, number]
            # Weights of k classes move together: with equal probabilities k/(k-1) makes the step exact.
            steepness = p * (1 - p) * (1.0 if self._classes == 2 else self._classes / (self._classes - 1))
            curvature = (self._sample.T @ (self._sample * steepness[:, None].float())).double()
            curvature *= self._count / len(self._sample)
            self._step(number, curvature, residual + curvature @ self.weights[number], find_evidence)

    def _step(self, number: int, curvature: Tensor, seen: Tensor, find_evidence: bool) -> None:
        noise = curvature + self._variance * torch.eye(len(curvature), dtype=torch.float64)
        noise.diagonal().add_(1e-9 * noise.diagonal().mean())
        root = torch.linalg.cholesky(noise)
        response = torch.linalg.solve_triangular(root, curvature, upper=False)
        observed = torch.linalg.solve_triangular(root, seen[:, None], upper=False)[:, 0]
        base = torch.zeros_like(curvature)
        base[0, 0] = _BASE_VARIANCE / float(self._sample[0, 0]) ** 2
        if find_evidence:
            parts = [response @ covariance @ response.T for covariance in self._covariances]
            ignorance = torch.eye(len(base), dtype=torch.float64) + response @ base @ response.T
            self._components[number], evidence = variance_components(observed, ignorance, parts)
            self._evidence[number] = evidence - _log_density(observed, ignorance)
            self._worth[number] = float((response**2).sum() / curvature.diagonal().sum())
        prior = base + sum(
            v * covariance for v, covariance in zip(self._components[number], self._covariances, strict=True)
        )
        spread = torch.eye(len(base), dtype=torch.float64) + response @ prior @ response.T
        solved = torch.cholesky_solve(observed[:, None], torch.linalg.cholesky(spread))
        self.weights[number] = (prior @ (response.T @ solved))[:, 0]

    def report(self) -> FitReport:
        """Return what the statistic was good for."""
        records, classes = self._count, len(self._worth)
        return FitReport(records, records * sum(self._worth) / classes, sum(self._evidence) / classes)

    def keep_base_rate_only(self) -> None:
        """Fit the base rate and nothing else."""
        self._covariances = [torch.zeros_like(covariance) for covariance in self._covariances]
        for _ in range(_ROUNDS):
            self.round(find_evidence=False)

    def _expected(self) -> Tensor:
        """Return `Σ_i p_i φ_i` of each class under the weights as they are."""
        found = torch.zeros_like(self._sums)
        for phi, logits in self._rows:
            found += (self._probabilities(phi, logits).T.float() @ phi).double()
        return found

    def _probabilities(self, phi: Tensor, before: Tensor) -> Tensor:
        logits = (phi @ self.weights.T.float() + before).double()
        return torch.sigmoid(logits) if self._classes == 2 else torch.softmax(logits, dim=1)


def variance_components(observed: Tensor, known: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, float]:
    """Return the v_t that make `observed ~ N(0, known + Σ_t v_t·parts_t)` most likely, about, and the log-density.

    Each step multiplies v_t by `√(aᵀ P_t a / tr(S⁻¹ P_t))`, with S the covariance and `a = S⁻¹·observed`: it never makes
    them less likely (Zhou, Hu, Zhou and Lange 2019, "MM algorithms for variance components models").
    """
    v = torch.ones(len(parts), dtype=torch.float64)
    for _ in range(_STEPS):
        inverse = torch.linalg.inv(_total(known, v, parts))
        solved = inverse @ observed
        explained = torch.stack([solved @ part @ solved for part in parts])
        expected = torch.stack([(inverse * part).sum() for part in parts])
        v = v * (explained / expected.clamp(min=1e-12)).clamp(min=0).sqrt()
    return v, _log_density(observed, _total(known, v, parts))


def _total(known: Tensor, v: Tensor, parts: Sequence[Tensor]) -> Tensor:
    return known + sum(share * part for share, part in zip(v, parts, strict=True))


def _log_density(observed: Tensor, covariance: Tensor) -> float:
    """Return `ln N(observed; 0, covariance)`, up to a constant."""
    root = torch.linalg.cholesky(covariance)
    scaled = torch.linalg.solve_triangular(root, observed[:, None], upper=False)
    return float(-root.diagonal().log().sum() - 0.5 * scaled.square().sum())
